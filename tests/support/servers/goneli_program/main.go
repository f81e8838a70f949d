// A member of a group that is goNELI, for tests: it says on standard output what it becomes, one line of JSON each.
//
//	goneli BROKERS GROUP TOPIC NAME HEARTBEAT_TIMEOUT_MS [SETTING=VALUE ...] --> {"event": "acquired", "at": 12.345}
//
// `at` is the host's clock in seconds, as neli_router/core/clock.py reads it: all processes of the host share it. It is read
// within goNELI's callback, and the line is written before the callback returns, by one unbuffered write. So a leader
// said "acquired" before its program found that it leads, and "revoked" and "fenced" after it had ceased to.
//
// It leaves the group when its standard input ends, as it does when the process that started it dies, and says
// "closed".
package main

import (
	"encoding/json"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/obsidiandynamics/goneli"
	"github.com/obsidiandynamics/libstdgo/scribe"
)

const (
	clockMonotonic    = 1
	clockMonotonicRaw = 4
	clockBoottime     = 7
)

func read(clock uintptr) int64 {
	var now syscall.Timespec
	if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&now)), 0); failed != 0 {
		panic(failed)
	}
	return now.Nano()
}

// How long the host has been suspended: the least of many readings, because a thread may stand still within one.
var suspended = func() int64 {
	least := int64(math.MaxInt64)
	for i := 0; i < 20; i++ {
		before := read(clockMonotonic)
		if most := read(clockBoottime) - before; most < least {
			least = most
		}
	}
	return least
}()

func say(event string) {
	line := map[string]interface{}{"event": event, "at": float64(read(clockMonotonicRaw)+suspended) / 1e9}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		os.Exit(1) // The test has ended.
	}
}

// Its log would drown ours: it says at each poll that it polls.
var silent = scribe.LoggerFactories{scribe.All: scribe.Fac(scribe.Nop)}

func told(event goneli.Event) {
	switch event.(type) {
	case goneli.LeaderAcquired:
		say("acquired")
	case goneli.LeaderRevoked:
		say("revoked")
	case goneli.LeaderFenced:
		say("fenced")
	}
}

func main() {
	timeout, err := strconv.Atoi(os.Args[5])
	if err != nil {
		panic(err)
	}
	settings := goneli.KafkaConfigMap{"bootstrap.servers": os.Args[1], "log_level": 0}
	for _, setting := range os.Args[6:] {
		name, value, _ := strings.Cut(setting, "=")
		settings[name] = value
	}
	member, err := goneli.New(goneli.Config{
		KafkaConfig:      settings,
		LeaderGroupID:    os.Args[2],
		LeaderTopic:      os.Args[3],
		Name:             os.Args[4],
		HeartbeatTimeout: goneli.Duration(time.Duration(timeout) * time.Millisecond),
		Scribe:           scribe.New(silent),
	}, told)
	if err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	say("started")
	for {
		select {
		case <-ended:
			_ = member.Close()
			say("closed")
			return
		default:
			if _, err := member.Pulse(10 * time.Millisecond); err != nil {
				panic(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}
