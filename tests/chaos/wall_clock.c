/* A wall clock that a test can step for one process: when preloaded, it adds the seconds in a file to the time of day.
 *
 *     clock_gettime(CLOCK_REALTIME), gettimeofday, time      the true time + what the file says now
 *     waits until a time of day                              until the corresponding true time; a step meanwhile is late
 *     every other clock                                      untouched
 *
 * libfaketime does not work: it leaves the C11 wait cnd_timedwait alone, which librdkafka uses, so that under it a
 * librdkafka ahead of time waits for as long as it is ahead, and one behind does not wait at all.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define WAITS_BY_MONOTONIC_CLOCK 2 /* In glibc's pthread_cond_t, set by pthread_condattr_setclock. */

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static volatile int64_t *ahead;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("WALL_CLOCK_AHEAD");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        ahead = page;
}

static struct timespec moved(struct timespec time, int sign)
{
    if (ahead)
        time.tv_sec += sign * *ahead;
    return time;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    REAL(clock_gettime);
    int failed = real(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *time = moved(*time, 1);
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *time, int base)
{
    return clock_gettime(CLOCK_REALTIME, time) ? 0 : base;
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until)
{
    REAL(cnd_timedwait);
    struct timespec meant = moved(*until, -1);
    return real(condition, mutex, &meant);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    REAL(pthread_cond_timedwait);
    int other_clock = condition->__data.__wrefs & WAITS_BY_MONOTONIC_CLOCK;
    struct timespec meant = other_clock ? *until : moved(*until, -1);
    return real(condition, mutex, &meant);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    REAL(sem_timedwait);
    struct timespec meant = moved(*until, -1);
    return real(semaphore, &meant);
}
