// A member of a group that is goNELI, for tests: it says on standard output what it becomes, one line of JSON each.
//
//	goneli BROKERS GROUP TOPIC NAME HEARTBEAT_TIMEOUT_MS --> {"event": "acquired", "at": 12.345}
//
// `at` is the host's clock of the day in seconds, which all its processes share. It leaves the group when its standard
// input ends, as it does when the process that started it dies, and says "closed".
package main

import (
	"encoding/json"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/obsidiandynamics/goneli"
	"github.com/obsidiandynamics/libstdgo/scribe"
)

func say(event string) {
	line := map[string]interface{}{"event": event, "at": float64(time.Now().UnixNano()) / 1e9}
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
	member, err := goneli.New(goneli.Config{
		KafkaConfig:      goneli.KafkaConfigMap{"bootstrap.servers": os.Args[1], "log_level": 0},
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
