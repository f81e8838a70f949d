package neli

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// lines reads a file of the test vectors.
func lines[T any](t testing.TB, name string) (list []T) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cmp.Or(os.Getenv("NELI_VECTORS"), "../../tests/vectors"), name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var x T
		if err := json.Unmarshal(line, &x); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list = append(list, x)
	}
	t.Logf("%s: %d lines", name, len(list))
	return list
}

// payload is a text, or the digits of bytes.
type payload struct{ Text, Hex *string }

func (p payload) bytes(t testing.TB) []byte {
	t.Helper()
	if p.Text != nil {
		return []byte(*p.Text)
	}
	data, err := hex.DecodeString(*p.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestHashing(t *testing.T) {
	for _, x := range lines[struct {
		payload
		Layout
		Slot, Partition int64
	}](t, "hashing.jsonl") {
		key := string(x.bytes(t))
		if slot, partition := x.Layout.Slot(key), x.Layout.Partition(key); slot != x.Slot || partition != x.Partition {
			t.Errorf("%q in %+v: got %d, %d; want %d, %d", key, x.Layout, slot, partition, x.Slot, x.Partition)
		}
	}
}

func TestFacts(t *testing.T) {
	for _, x := range lines[struct{ Fact, Hash string }](t, "facts.jsonl") {
		if hash, _ := murmur128([]byte(x.Fact)); Digest(hash).String() != x.Hash {
			t.Errorf("%s: got %v, want %s", x.Fact, Digest(hash), x.Hash)
		}
		// The fact is written again from its parts, too.
		var parts []json.RawMessage
		if err := json.Unmarshal([]byte(x.Fact), &parts); err != nil {
			t.Fatal(err)
		}
		var field string
		var key any
		json.Unmarshal(parts[0], &field)
		json.Unmarshal(parts[1], &key)
		if number, ok := key.(float64); ok {
			key = int64(number)
		}
		if got := fact(field, key, factValue(t, field, parts[2])); got.String() != x.Hash {
			t.Errorf("%s, written again: got %v, want %s", x.Fact, got, x.Hash)
		}
	}
}

func factValue(t *testing.T, field string, text []byte) any {
	t.Helper()
	value, _, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	switch field {
	case "genesis":
		var g Genesis
		if !g.setInImage(value) {
			t.Fatalf("%s is not a genesis", text)
		}
		return &g
	case "seats":
		var s Seat
		if !seat(&s)(value) {
			t.Fatalf("%s is not a seat", text)
		}
		return &s
	case "loads", "graces", "away":
		var x float64
		double(&x, 0, 1e15)(value)
		return x
	}
	if text, ok := value.(string); ok {
		return text
	}
	var x int64
	integer(&x, 0, maxOffset)(value)
	return x
}

func TestDecoding(t *testing.T) {
	for _, x := range lines[struct {
		payload
		Kind string
	}](t, "decoding.jsonl") {
		kind := ""
		record, err := Decode(x.bytes(t))
		if err == nil {
			kind = record.Kind
		}
		if kind != x.Kind {
			t.Errorf("%.300q: got %q (%v), want %q", x.bytes(t), kind, err, x.Kind)
		}
	}
}

type ledgerLine struct {
	payload
	Offset int64
	Record json.RawMessage
}

type run struct {
	From, To, Term, Began int64
	Member                string
}

// stateLine is a line of NAME.states.jsonl. Version is nil if the line has only the digest.
type stateLine struct {
	SHA256    string
	Snapshot  *int64
	At, After int64
	Digest    string
	Version   *int64
	Base      int64
	Members   []string
	Seats     []struct {
		Incarnation, Name string
		Joined            int64
		LastBeat          int64 `json:"last_beat"`
	}
	Owners, Targets, Standbys []run
	Pins                      map[int64]string
	Drains                    map[string]int64
	Weights                   json.RawMessage
	Loads                     map[int64]float64
	Graces, Away              map[string]float64
	Clear                     map[string]int64
	Departed                  []string
	Lookups                   []struct {
		Key, Name, Address string
		Partition, Term    int64
	}
}

func TestLedgers(t *testing.T) {
	folder := cmp.Or(os.Getenv("NELI_VECTORS"), "../../tests/vectors")
	files, _ := filepath.Glob(filepath.Join(folder, "*.ledger.jsonl"))
	if len(files) == 0 {
		t.Fatal("no ledgers")
	}
	digests, states, lookups := 0, 0, 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".ledger.jsonl")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := lines[stateLine](t, name+".states.jsonl")
			if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want[0].SHA256 {
				t.Errorf("the SHA-256 of the file is %x", sum)
			}
			ledger := readLedger(t, name)
			state, rest := begin(t, ledger, want[0])
			digestAt := map[int64]Digest{state.At: state.Digest()}
			for i, line := range rest {
				err := state.Fold(line.Offset, line.Payload)
				if newer := name == "newer" && i == len(rest)-1; newer != errors.Is(err, ErrVersion) || !newer && err != nil {
					t.Fatalf("after %d: %v", line.Offset, err)
				}
				digestAt[state.At] = state.Digest()
				want := want[i+1]
				if want.After != line.Offset || state.Digest().String() != want.Digest || state.compute() != state.Digest() {
					t.Fatalf("after %d: digest %v, want %s after %d", line.Offset, state.Digest(), want.Digest, want.After)
				}
				digests++
				if want.Version != nil {
					states++
					lookups += len(want.Lookups)
					check(t, state, want)
				}
			}
			if len(rest) != len(want)-1 {
				t.Errorf("%d states instead of %d", len(rest), len(want)-1)
			}
			checkSnapshots(t, ledger, digestAt)
		})
	}
	t.Logf("%d ledgers, %d digests, %d whole states, %d look-ups", len(files), digests, states, lookups)
}

// begin gives the state from which a reader starts, and the lines that it folds.
func begin(t *testing.T, ledger []Line, head stateLine) (*State, []Line) {
	t.Helper()
	for i := range ledger {
		state := startAt(ledger[:i+1])
		if state == nil {
			continue
		}
		if head.Snapshot != nil && (ledger[i].Offset != *head.Snapshot || state.At != head.At ||
			state.Digest().String() != head.Digest) {
			t.Fatalf("starts at %d with the snapshot at %d", state.At, ledger[i].Offset)
		}
		return state, slices.DeleteFunc(slices.Clone(ledger), func(line Line) bool { return line.Offset < state.At })
	}
	t.Fatal("no start")
	return nil, nil
}

// checkSnapshots compares the good snapshots in a ledger with the states that were folded.
func checkSnapshots(t *testing.T, ledger []Line, digestAt map[int64]Digest) {
	t.Helper()
	for _, line := range ledger {
		record, err := Decode(line.Payload)
		if err != nil {
			continue
		}
		if b, ok := record.Body.(*Snapshot); ok {
			state, err := b.Restore()
			if digest, there := digestAt[b.Upto]; err == nil && there && digest != state.Digest() {
				t.Errorf("the snapshot at %d differs from the state at %d", line.Offset, b.Upto)
			}
		}
	}
}

// runs writes lists of partitions as the vectors do.
func runs(members []string, terms, began []int64) (list []run) {
	for i, member := range members {
		r := run{From: int64(i), To: int64(i), Member: member}
		if terms != nil {
			r.Term, r.Began = terms[i], began[i]
		}
		if n := len(list) - 1; n >= 0 {
			last := list[n]
			last.From, last.To = r.From, r.To
			if last == r {
				list[n].To = r.To
				continue
			}
		}
		list = append(list, r)
	}
	return list
}

func check(t *testing.T, s *State, want stateLine) {
	t.Helper()
	same := func(what string, got, want any) {
		t.Helper()
		a, b := reflect.ValueOf(got), reflect.ValueOf(want)
		empty := (a.Kind() == reflect.Slice || a.Kind() == reflect.Map) && a.Len() == 0 && b.Len() == 0
		if !empty && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	same("version", s.Version, *want.Version)
	same("base", s.Base, want.Base)
	same("number of seats", len(s.Seats), len(want.Seats))
	members := []string{}
	for i, seat := range want.Seats {
		got := s.Seats[i]
		if s.isMember(got.Incarnation) {
			members = append(members, got.Incarnation)
		}
		same("seat", []any{got.Incarnation, got.Name, got.Joined, s.LastBeats[got.Incarnation]},
			[]any{seat.Incarnation, seat.Name, seat.Joined, seat.LastBeat})
	}
	same("members", members, want.Members) // Without those that are away, other than the README says.
	same("owners", runs(s.Owners, s.Terms, s.Began), want.Owners)
	same("targets", runs(s.Targets, nil, nil), want.Targets)
	if slices.ContainsFunc(s.Standbys, func(c string) bool { return c != "" }) || len(want.Standbys) > 0 {
		same("standbys", runs(s.Standbys, nil, nil), want.Standbys)
	}
	var weights []Entry[string, int64]
	if want.Weights != nil {
		value, _, _ := parse(want.Weights)
		mapping(&weights, name, weight)(value)
	}
	same("weights", s.Weights, weights)
	same("pins", s.Pins, want.Pins)
	same("drains", s.Drains, want.Drains)
	same("loads", s.Loads, want.Loads)
	same("graces", s.Graces, want.Graces)
	same("away", s.Away, want.Away)
	same("clear", s.Clear, want.Clear)
	same("departed", s.Departed, want.Departed)
	router := Router{state: s}
	for _, x := range want.Lookups {
		owner, err := router.Owner(x.Key)
		same("look-up", owner, Owner{x.Name, x.Address, x.Term, x.Partition})
		same("error", err, nil)
	}
}
