package neli

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// tail is a Source that gives the lines it has. More may come.
type tail []Line

func (*tail) Start() *State { return nil }

func (s *tail) Next() (Line, error) {
	if len(*s) == 0 {
		return Line{}, io.EOF
	}
	line := (*s)[0]
	*s = (*s)[1:]
	return line, nil
}

func readLedger(t *testing.T, name string) (ledger []Line) {
	t.Helper()
	for _, line := range lines[ledgerLine](t, name+".ledger.jsonl") {
		payload := []byte(line.Record)
		if payload == nil {
			payload = line.bytes(t)
		}
		ledger = append(ledger, Line{line.Offset, payload})
	}
	return ledger
}

// lastDigest gives the digest after the last line of a ledger.
func lastDigest(t *testing.T, name string) string {
	t.Helper()
	states := lines[stateLine](t, name+".states.jsonl")
	return states[len(states)-1].Digest
}

func TestRouter(t *testing.T) {
	for _, name := range []string{"graces", "snapshots", "wishes"} {
		ledger := readLedger(t, name)
		var router Router
		if _, err := router.Owner("alice"); !errors.Is(err, ErrNoGroup) {
			t.Errorf("before the first line: %v", err)
		}
		half := len(ledger) - 2
		for _, part := range []tail{{}, ledger[:half], ledger[half:]} {
			if err := router.CatchUp(&part); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if _, digest := router.State(); digest.String() != lastDigest(t, name) {
			t.Errorf("%s: got %v, want %s", name, digest, lastDigest(t, name))
		}
		if _, err := router.OwnerOf(-1); err == nil {
			t.Error("the partition -1 has an owner")
		}
		if owner, err := router.OwnerOf(2); err != nil || owner.Partition != 2 || owner.Term == 0 {
			t.Errorf("got %+v, %v", owner, err)
		}
		again := tail(ledger[len(ledger)-1:])
		if err := router.CatchUp(&again); !errors.Is(err, ErrRewound) {
			t.Errorf("%s: the last line again: %v", name, err)
		}
		if _, err := router.Owner("alice"); !errors.Is(err, ErrRewound) {
			t.Errorf("%s: the error is not final: %v", name, err)
		}
	}
}

func TestStartWithoutSnapshot(t *testing.T) {
	const genesis = `{"kind":"genesis","by":"a","layout":{},"lease":1,"guarantee":"exclusive","base":0,"version":3,"at":%d}`
	for text, want := range map[string]error{
		fmt.Sprintf(genesis, 9):                nil,
		fmt.Sprintf(genesis, 8):                ErrTrimmed,
		`{"kind":"leave","by":"a"}`:            ErrTrimmed,
		`{"kind":"drain","by":"a","name":"n"}`: nil,
		`not JSON`:                             nil,
		`{"kind":"snapshot","state":{"version":4,"newer":true}}`:                                    ErrVersion,
		`{"kind":"snapshot","state":{"version":3,"newer":true}}`:                                    nil,
		strings.Replace(fmt.Sprintf(genesis, 9), `"version":3`, `"version":4`, 1):                   ErrVersion,
		strings.Replace(fmt.Sprintf(genesis, 9), `{}`, `{"slots":9999999,"partitions":9999999}`, 1): ErrTooLarge,
	} {
		var router Router
		if err := router.CatchUp(&tail{{9, []byte(text)}}); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", text, err, want)
		}
	}
}

// writeCopy writes a copy of lines, with a snapshot in its first line if there is one.
func writeCopy(ledger []Line, snapshot, digest string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"copy":"neli ledger","v":1,"ledger":"x","start":%d%s}`+"\n", ledger[0].Offset, snapshot)
	for _, line := range ledger {
		if json.Valid(line.Payload) {
			fmt.Fprintf(&b, `{"offset":%d,"record":%s}`+"\n", line.Offset, line.Payload)
		} else {
			fmt.Fprintf(&b, `{"offset":%d,"base64":"%s"}`+"\n", line.Offset, base64.StdEncoding.EncodeToString(line.Payload))
		}
	}
	sum := sha256.Sum256(b.Bytes())
	end := ledger[len(ledger)-1].Offset + 1
	fmt.Fprintf(&b, `{"end":%d,"records":%d,"digest":"%s","sha256":"%x"}`+"\n", end, len(ledger), digest, sum)
	return b.Bytes()
}

func readCopy(text []byte) (string, error) {
	source, err := OpenCopy(bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	var router Router
	err = router.CatchUp(source)
	_, digest := router.State()
	return digest.String(), err
}

func TestCopy(t *testing.T) {
	for _, name := range []string{"rejected", "foul-15"} {
		text := writeCopy(readLedger(t, name), "", lastDigest(t, name))
		if digest, err := readCopy(text); err != nil || digest != lastDigest(t, name) {
			t.Errorf("%s: got %s, %v", name, digest, err)
		}
		cut := text[:bytes.LastIndexByte(text[:len(text)-1], '\n')+1]
		if _, err := readCopy(cut); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s, cut: %v", name, err)
		}
		if _, err := readCopy(bytes.Replace(text, []byte(`"by":"`), []byte(`"by":"x`), 1)); err == nil {
			t.Errorf("%s, changed: no error", name)
		}
	}
	if _, err := readCopy([]byte("{}\n")); err == nil {
		t.Error("{} is a copy")
	}

	// A copy may start from a snapshot, or from only its image.
	ledger := readLedger(t, "wishes")
	var record struct{ State json.RawMessage }
	if err := json.Unmarshal(ledger[0].Payload, &record); err != nil {
		t.Fatal(err)
	}
	for _, snapshot := range [][]byte{ledger[0].Payload, record.State} {
		digest, err := readCopy(writeCopy(ledger, `,"snapshot":`+string(snapshot), ""))
		if err != nil || digest != lastDigest(t, "wishes") {
			t.Errorf("got %s, %v", digest, err)
		}
	}
}

// FuzzFold folds foreign bytes into states of the vectors. Nothing may panic.
func FuzzFold(f *testing.F) {
	f.Add([]byte(`{"kind":"handover","by":"a","v":2,"terms":{"99999":1}}`), int64(7))
	for _, x := range lines[payload](f, "decoding.jsonl") {
		f.Add(x.bytes(f), int64(7))
	}
	f.Fuzz(func(t *testing.T, payload []byte, o int64) {
		state := NewState()
		for _, line := range fuzzed {
			state.Fold(line.Offset, line.Payload)
		}
		for range 2 {
			if state.Fold(max(state.At, o&maxOffset), payload) != nil {
				return
			}
		}
		if record, err := Decode(payload); err == nil {
			if b, ok := record.Body.(*Snapshot); ok {
				b.Restore()
			}
		}
		if state.Digest() != state.compute() || len(slices.Compact(state.Departed)) > maxDeparted {
			t.Error("bad state")
		}
	})
}

var fuzzed = []Line{
	{0, []byte(`{"kind":"genesis","by":"a","layout":{"slots":8,"partitions":8},"lease":1,"guarantee":"exclusive","base":0,"version":3}`)},
	{1, []byte(`{"kind":"join","by":"a","name":"a","zone":"x","versions":[2,3],"at":1}`)},
	{2, []byte(`{"kind":"join","by":"b","v":2,"name":"b","zone":"y","versions":[2,3],"at":2,"grace":5}`)},
	{3, []byte(`{"kind":"load","by":"op","loads":{"0":1,"1":5,"2":0.1}}`)},
}
