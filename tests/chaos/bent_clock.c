/* Clocks that run at another rate for one process: when preloaded, it makes everything that counts time faster or
 * slower.
 *
 *     clock_gettime, except for the time of day     the true time * rate
 *     waits for a duration (poll, sleep, ...)       for that duration by the bent clock
 *     waits until a time of a bent clock            until the corresponding true time
 *     the time of day, and waits until one          untouched: a host's time of day is set from outside
 *
 * CLOCK_RATE_PPM in the environment is the difference of the rate from 1, in parts in a million. The clocks agree with
 * the true ones when the host starts. So a reading of any of these clocks, divided by the rate, is the true one.
 *
 * libfaketime does not work: it leaves sem_clockwait alone, which Python uses to wait for its locks, so that a wait of
 * a second under it does not end; and it makes all clocks show the time of day.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#define WAITS_BY_MONOTONIC_CLOCK 2 /* In glibc's pthread_cond_t, set by pthread_condattr_setclock. */
#define SECOND 1000000000LL
#define MILLION 1000000LL

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static long long ppm;

__attribute__((constructor)) static void start(void)
{
    const char *told = getenv("CLOCK_RATE_PPM");
    ppm = told ? atoll(told) : 0;
}

static int is_bent(clockid_t clock)
{
    switch (clock) {
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        return 1;
    }
    return 0;
}

static struct timespec of(__int128 nanoseconds)
{
    return (struct timespec){.tv_sec = nanoseconds / SECOND, .tv_nsec = nanoseconds % SECOND};
}

static __int128 nanoseconds(const struct timespec *time)
{
    return (__int128)time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec bent(const struct timespec *time)
{
    return of(nanoseconds(time) * (MILLION + ppm) / MILLION);
}

/* Never earlier than is meant: a caller that waits until a time must find that it has come. */
static struct timespec meant(const struct timespec *time)
{
    return of((nanoseconds(time) * MILLION + MILLION + ppm - 1) / (MILLION + ppm));
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    REAL(clock_gettime);
    int failed = real(clock, time);
    if (!failed && is_bent(clock))
        *time = bent(time);
    return failed;
}

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *timeout, const sigset_t *signals)
{
    REAL(ppoll);
    struct timespec rest = timeout ? meant(timeout) : (struct timespec){0};
    return real(files, count, timeout ? &rest : NULL, signals);
}

int poll(struct pollfd *files, nfds_t count, int timeout)
{
    struct timespec rest = of((__int128)timeout * MILLION);
    return ppoll(files, count, timeout < 0 ? NULL : &rest, NULL);
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    REAL(epoll_wait);
    return real(epoll, events, most, timeout <= 0 ? timeout : (int)((timeout * MILLION + MILLION + ppm - 1) / (MILLION + ppm)));
}

int select(int count, fd_set *restrict reads, fd_set *restrict writes, fd_set *restrict excepts,
           struct timeval *restrict timeout)
{
    REAL(select);
    if (!timeout)
        return real(count, reads, writes, excepts, NULL);
    struct timespec whole = {.tv_sec = timeout->tv_sec, .tv_nsec = timeout->tv_usec * 1000};
    struct timespec rest = meant(&whole);
    struct timeval left = {.tv_sec = rest.tv_sec, .tv_usec = rest.tv_nsec / 1000};
    return real(count, reads, writes, excepts, &left);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *rest)
{
    REAL(clock_nanosleep);
    if (!is_bent(clock) && (flags & TIMER_ABSTIME))
        return real(clock, flags, time, rest);
    struct timespec until = meant(time);
    int failed = real(clock, flags, &until, rest);
    if (failed && rest && !(flags & TIMER_ABSTIME))
        *rest = bent(rest);
    return failed;
}

int nanosleep(const struct timespec *time, struct timespec *rest)
{
    REAL(nanosleep);
    struct timespec lasting = meant(time);
    int failed = real(&lasting, rest);
    if (failed && rest)
        *rest = bent(rest);
    return failed;
}

int usleep(useconds_t microseconds)
{
    struct timespec time = of((__int128)microseconds * 1000);
    return nanosleep(&time, NULL);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until)
{
    REAL(sem_clockwait);
    struct timespec then = is_bent(clock) ? meant(until) : *until;
    return real(semaphore, clock, &then);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until)
{
    REAL(pthread_cond_clockwait);
    struct timespec then = is_bent(clock) ? meant(until) : *until;
    return real(condition, mutex, clock, &then);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    REAL(pthread_cond_timedwait);
    int by_bent_clock = condition->__data.__wrefs & WAITS_BY_MONOTONIC_CLOCK;
    struct timespec then = by_bent_clock ? meant(until) : *until;
    return real(condition, mutex, &then);
}
