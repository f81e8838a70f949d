package neli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Digest stands for a state. Equal states have equal digests.
type Digest uint64

// String gives the 16 hexadecimal digits that stand in records (rule D7).
func (d Digest) String() string { return fmt.Sprintf("%016x", uint64(d)) }

// Digest gives the exclusive-or of the hashes of all facts of the state.
// Beats keep it up to date. After any other record it is computed anew when it is asked for.
func (s *State) Digest() Digest {
	if !s.known {
		s.digest, s.known = s.compute(), true
	}
	return s.digest
}

func (s *State) compute() (sum Digest) {
	if s.Genesis != nil {
		sum ^= fact("genesis", nil, s.Genesis)
	}
	single := func(name string, x int64) {
		if x != 0 {
			sum ^= fact(name, nil, x) ^ fact(name, nil, int64(0))
		}
	}
	single("genesis_at", s.GenesisAt)
	single("version", s.Version)
	single("base", s.Base)
	for i := range s.Seats {
		sum ^= fact("seats", s.Seats[i].Incarnation, &s.Seats[i])
	}
	texts := func(name string, list []string) {
		for i, text := range list {
			if text != "" {
				sum ^= fact(name, int64(i), text)
			}
		}
	}
	texts("owners", s.Owners)
	texts("targets", s.Targets)
	texts("standbys", s.Standbys)
	texts("departed", s.Departed)
	for i := range s.Terms {
		sum ^= fact("terms", int64(i), s.Terms[i]) ^ fact("began", int64(i), s.Began[i])
	}
	for _, e := range s.Weights {
		sum ^= fact("weights", e.Key, e.Value)
	}
	return sum ^ facts("last_beats", s.LastBeats) ^ facts("pins", s.Pins) ^ facts("drains", s.Drains) ^
		facts("loads", s.Loads) ^ facts("graces", s.Graces) ^ facts("away", s.Away) ^ facts("clear", s.Clear)
}

func facts[K comparable, V any](name string, entries map[K]V) (sum Digest) {
	for key, value := range entries {
		sum ^= fact(name, key, value)
	}
	return sum
}

// fact gives the hash of a fact (rules D1 to D3).
func fact(field string, key, value any) Digest {
	b := make([]byte, 0, 128)
	b = appendJSON(append(b, '['), field)
	b = appendJSON(append(b, ','), key)
	b = appendJSON(append(b, ','), value)
	hash, _ := murmur128(append(b, ']'))
	return Digest(hash)
}

var escaper = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

func appendJSON(b []byte, value any) []byte {
	switch x := value.(type) {
	case nil:
		return append(b, "null"...)
	case int64:
		return strconv.AppendInt(b, x, 10)
	case float64:
		return appendDouble(b, x)
	case string:
		return append(append(append(b, '"'), escaper.Replace(x)...), '"')
	case *Seat:
		for i, item := range []any{x.Incarnation, x.Name, x.Address, x.Weight, x.Zone, x.Versions, x.Joined, x.Witness} {
			b = appendJSON(append(b, "[,"[min(i, 1)]), item)
		}
		return append(b, ']')
	case [2]int64:
		return fmt.Appendf(b, "[%d,%d]", x[0], x[1])
	case *Genesis:
		b = appendJSON(append(b, `{"kind":"genesis","by":`...), x.By)
		b = fmt.Appendf(b, `,"v":%d,"layout":{"slots":%d,"partitions":%d,"tags":%t},"lease":`,
			x.Format, x.Layout.Slots, x.Layout.Partitions, x.Layout.Tags)
		b = appendDouble(b, x.Lease)
		return fmt.Appendf(b, `,"guarantee":"%s","base":%d,"version":%d,"at":%d}`, x.Guarantee, x.Base, x.Version, x.At)
	}
	return b
}

// appendDouble writes a double by rule D6.
func appendDouble(b []byte, x float64) []byte {
	if x != 0 && math.Abs(x) < 1e-5 {
		digits, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', -1, 64), "e-")
		return append(append(append(b, digits...), "e-"...), strings.TrimLeft(exponent, "0")...)
	}
	text := strconv.FormatFloat(x, 'f', -1, 64)
	b = append(b, text...)
	if !strings.Contains(text, ".") {
		b = append(b, ".0"...)
	}
	return b
}
