package neli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

var (
	// ErrNoGroup means that the ledger has no genesis yet.
	ErrNoGroup = errors.New("the ledger has no group yet")
	// ErrTrimmed means that a ledger has lost its beginning, and has no snapshot from which to start (rule S7).
	ErrTrimmed = errors.New("the ledger was trimmed too early")
)

// A Line is what stands at an offset of a ledger.
type Line struct {
	Offset  int64
	Payload []byte
}

// A Source gives the lines of a ledger in ascending order.
type Source interface {
	// Start gives the state before the first line. It is nil if the router must find out.
	Start() *State
	// Next gives the next line, or io.EOF if the ledger holds no more now.
	Next() (Line, error)
}

// An Owner says who owns a partition. Without an owner, the name is empty.
type Owner struct {
	Name, Address string
	Term          int64
	Partition     int64
}

// A Router reads a ledger and names owners. It never writes. Several goroutines may use it at once.
//
// It does not look for evidence of damage (rules L2 to L6); of these rules it only notices an offset that it has read.
type Router struct {
	mu    sync.RWMutex
	state *State
	err   error
}

// CatchUp folds all lines that the source holds now. It may be called again, but not twice at once. An error is final.
func (r *Router) CatchUp(source Source) error {
	err := r.err
	if err == nil && r.state == nil {
		err = r.begin(source)
	}
	for err == nil {
		var line Line
		if line, err = source.Next(); err == nil {
			err = r.fold(line)
		}
	}
	if err == io.EOF {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	return err
}

func (r *Router) fold(line Line) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Fold(line.Offset, line.Payload)
}

// begin finds the state from which to start (rules S3 to S7). It folds the lines that it has read from there on.
func (r *Router) begin(source Source) error {
	state := source.Start()
	var lines []Line
	for state == nil {
		line, err := source.Next()
		if err == io.EOF && len(lines) > 0 {
			state, err = startWithoutSnapshot(lines)
		} else if err == nil {
			lines = append(lines, line)
			state = startAt(lines)
		}
		if err != nil {
			return err
		}
	}
	if err := state.checkVersion(); err != nil {
		return err
	}
	r.mu.Lock()
	r.state = state
	r.mu.Unlock()
	for _, line := range lines {
		if line.Offset < state.At {
			continue
		}
		if err := r.fold(line); err != nil {
			return err
		}
	}
	return nil
}

// startAt gives the state from which to start if the last of the lines shows it, or nil.
func startAt(lines []Line) *State {
	first, last := lines[0], lines[len(lines)-1]
	if first.Offset <= 1 {
		return NewState()
	}
	record, err := Decode(last.Payload)
	if err != nil {
		return nil
	}
	if b, ok := record.Body.(*Snapshot); ok && first.Offset <= b.Upto && b.Upto <= last.Offset {
		if state, err := b.Restore(); err == nil {
			return state
		}
	}
	return nil
}

// startWithoutSnapshot is rule S7.
func startWithoutSnapshot(lines []Line) (*State, error) {
	var genesis, lateGenesis, others bool
	for _, line := range lines {
		record, err := Decode(line.Payload)
		if err != nil {
			if v := snapshotVersion(line.Payload); v > newestVersion {
				return nil, fmt.Errorf("%w: %d in a snapshot", ErrVersion, v)
			}
			continue
		}
		switch b := record.Body.(type) {
		case *Genesis:
			genesis = true
			lateGenesis = lateGenesis || b.At < lines[0].Offset
		case *Join, *Beat, *Expire, *Handover, *Leave, *Snapshot:
			others = true
		}
	}
	if lateGenesis || !genesis && others {
		return nil, ErrTrimmed
	}
	return NewState(), nil
}

// snapshotVersion gives the version in a snapshot that cannot be decoded, or 0.
func snapshotVersion(payload []byte) int64 {
	var record struct {
		Kind  string `json:"kind"`
		State struct {
			Version int64 `json:"version"`
		} `json:"state"`
	}
	if json.Unmarshal(payload, &record) != nil || record.Kind != "snapshot" {
		return 0
	}
	return record.State.Version
}

// Owner gives the owner of a key. The key is text in UTF-8, or any bytes.
func (r *Router) Owner(key string) (Owner, error) {
	return r.owner(func(layout Layout) int64 { return layout.Partition(key) })
}

// OwnerOf gives the owner of a partition.
func (r *Router) OwnerOf(partition int64) (Owner, error) {
	return r.owner(func(Layout) int64 { return partition })
}

func (r *Router) owner(partition func(Layout) int64) (Owner, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.err != nil {
		return Owner{}, r.err
	}
	if r.state == nil || r.state.Genesis == nil {
		return Owner{}, ErrNoGroup
	}
	i := partition(r.state.Genesis.Layout)
	if i < 0 || i >= int64(len(r.state.Owners)) {
		return Owner{}, fmt.Errorf("partition %d is not from 0 to %d", i, len(r.state.Owners)-1)
	}
	o := Owner{Term: r.state.Terms[i], Partition: i}
	if seat := r.state.seat(r.state.Owners[i]); seat != nil {
		o.Name, o.Address = seat.Name, seat.Address
	}
	return o, nil
}

// State gives the offset above the last line that was folded, and the digest of the state there.
func (r *Router) State() (at int64, digest Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil {
		return 0, 0
	}
	return r.state.At, r.state.Digest()
}
