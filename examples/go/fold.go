package neli

import (
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrVersion means that the group has a version that this package does not know (rule V3).
	ErrVersion = errors.New("unknown version of the fold")
	// ErrRewound means that the ledger has lost records that were read (rule L1).
	ErrRewound = errors.New("the ledger was rewound")
	// ErrTooLarge means that a group has more partitions than this package accepts.
	ErrTooLarge = errors.New("too many partitions")
)

const (
	oldestVersion, newestVersion = 2, 3
	maxDeparted                  = 64
	// maxPartitions keeps one foreign record from using up all memory. The specification has no such limit.
	maxPartitions = 1 << 22
)

// Fold adds what stands at an offset to the state. Bytes that are no record only move At. After an error, the state
// must not be used to name owners.
func (s *State) Fold(o int64, payload []byte) error {
	if o < s.At {
		return fmt.Errorf("%w: offset %d after %d", ErrRewound, o, s.At-1)
	}
	s.At = o + 1
	record, err := Decode(payload)
	if err != nil {
		return nil // Readers skip it (rule F2).
	}
	return s.apply(o, record)
}

// checkVersion is rule V3.
func (s *State) checkVersion() error {
	if s.Genesis != nil && (s.Version < oldestVersion || s.Version > newestVersion) {
		return fmt.Errorf("%w: %d", ErrVersion, s.Version)
	}
	return nil
}

// apply folds a record (rules F3 to F19).
func (s *State) apply(o int64, r *Record) error {
	if s.Genesis == nil {
		genesis, ok := r.Body.(*Genesis)
		if !ok || r.Format == 2 && genesis.Version < 3 {
			return nil
		}
		return s.found(o, genesis)
	}
	if r.Format == 2 && s.Version < 3 {
		return nil
	}
	if beat, ok := r.Body.(*Beat); ok {
		s.beat(o, r.By, beat)
		return nil
	}
	s.known = false
	switch b := r.Body.(type) {
	case *Join:
		s.join(o, r.By, b)
	case *Leave:
		if s.isMember(r.By) {
			s.depart(o, []departure{{r.By, b.Grace}})
		}
	case *Expire:
		s.expire(o, r.By, b)
	case *Certify:
		s.certify(o, b.Incarnation)
	case *Handover:
		s.handOver(o, r.By, b)
	case *Upgrade:
		s.upgrade(b.Version)
		return s.checkVersion()
	case *Drain:
		if s.addDrain(b.Name, o) {
			if h := s.holder(b.Name); h != nil && s.isAway(h.Incarnation) {
				s.depart(o, []departure{{h.Incarnation, 0}})
			} else {
				s.wish(o, b.Name)
			}
		}
	case *Undrain:
		if _, drained := s.Drains[b.Name]; drained {
			delete(s.Drains, b.Name)
			s.wish(o, b.Name)
		}
	case *Pin:
		if before := s.Pins[b.Partition]; b.Partition < int64(len(s.Owners)) && before != b.Name {
			s.Pins[b.Partition] = b.Name
			s.wish(o, before, b.Name)
		}
	case *Unpin:
		if before, pinned := s.Pins[b.Partition]; pinned {
			delete(s.Pins, b.Partition)
			s.wish(o, before)
		}
	case *Weigh:
		if s.setWeight(b.Name, b.Weight) {
			s.wish(o, b.Name)
		}
	case *Load:
		if s.setLoads(b.Loads) {
			s.retarget(o, s.Owners, nil)
		}
	}
	return nil
}

// found is rule F4.
func (s *State) found(o int64, b *Genesis) error {
	if b.Layout.Partitions > maxPartitions {
		return fmt.Errorf("%w: %d", ErrTooLarge, b.Layout.Partitions)
	}
	m := int(b.Layout.Partitions)
	s.Genesis, s.GenesisAt, s.Version, s.Base = b, o, b.Version, b.Base
	s.Owners, s.Targets = make([]string, m), make([]string, m)
	s.Terms, s.Began = make([]int64, m), make([]int64, m)
	s.known = false
	return s.checkVersion()
}

// beat is rule F6. It keeps the digest up to date.
func (s *State) beat(o int64, by string, b *Beat) {
	if !s.isMember(by) {
		return
	}
	if s.known {
		s.digest ^= fact("last_beats", by, s.LastBeats[by]) ^ fact("last_beats", by, o)
	}
	s.LastBeats[by] = o
	if b.Clear == nil {
		return
	}
	before, there := s.Clear[by]
	if u := min(*b.Clear, o); u > before {
		s.Clear[by] = u
		if s.known && there {
			s.digest ^= fact("clear", by, before)
		}
		if s.known {
			s.digest ^= fact("clear", by, u)
		}
	}
}

// join is rule F7.
func (s *State) join(o int64, by string, b *Join) {
	_, seated := s.LastBeats[by]
	holder := s.holder(b.Name)
	if seated || slices.Contains(s.Departed, by) || s.Version < b.Versions[0] || s.Version > b.Versions[1] || b.At > o ||
		holder != nil && holder.Joined >= b.At || holder == nil && len(s.Seats) >= limit {
		return
	}
	kept := slices.Clone(s.Owners)
	if holder != nil {
		old := holder.Incarnation
		for _, list := range [][]string{kept, s.Targets, s.Standbys} {
			for i := range list {
				if list[i] == old {
					list[i] = by
				}
			}
		}
		s.unseat([]string{old})
	}
	s.Base = max(s.Base, b.Floor-o)
	s.Seats = append(s.Seats, Seat{by, b.Name, b.Address, b.Weight, b.Zone, b.Versions, o, b.Witness})
	s.LastBeats[by] = o
	if b.Grace != nil {
		s.Graces[by] = *b.Grace
	}
	s.retarget(o, kept, nil)
}

// expire is rule F9.
func (s *State) expire(o int64, by string, b *Expire) {
	if !s.isMember(by) {
		return
	}
	var silent []departure
	for _, e := range b.LastBeats {
		if at, seated := s.LastBeats[e.Key]; seated && at == e.Value {
			d := departure{e.Key, s.Graces[e.Key]}
			if s.isAway(e.Key) {
				d.grace = 0
			}
			silent = append(silent, d)
			delete(s.Clear, e.Key)
		}
	}
	if silent != nil {
		s.depart(o, silent)
	}
}

// certify is rule F10.
func (s *State) certify(o int64, q string) {
	if s.isMember(q) {
		s.depart(o, []departure{{q, s.Graces[q]}})
	} else if !s.isAway(q) && !slices.Contains(s.Departed, q) {
		s.appendDeparted(q)
	}
}

// handOver is rule F11.
func (s *State) handOver(o int64, by string, b *Handover) {
	if s.isAway(by) {
		return
	}
	for _, e := range b.Terms {
		if i := e.Key; i < int64(len(s.Owners)) && s.Owners[i] == by && s.Terms[i] == e.Value {
			to := s.Targets[i]
			if s.isAway(to) {
				to = by
			}
			s.give(o, int(i), to)
		}
	}
}

// upgrade is rule F12.
func (s *State) upgrade(w int64) {
	members := 0
	for _, seat := range s.Seats {
		if s.isAway(seat.Incarnation) {
			continue
		}
		if w < seat.Versions[0] || w > seat.Versions[1] {
			return
		}
		members++
	}
	if members > 0 {
		s.Version = max(s.Version, w)
		s.computeStandbys()
	}
}

// wish retargets if one of the names has a holder (rule F20).
func (s *State) wish(o int64, names ...string) {
	if slices.ContainsFunc(names, func(name string) bool { return s.holder(name) != nil }) {
		s.retarget(o, s.Owners, nil)
	}
}

// unseat is P1.
func (s *State) unseat(list []string) {
	for _, q := range list {
		s.Seats = slices.DeleteFunc(s.Seats, func(seat Seat) bool { return seat.Incarnation == q })
		delete(s.LastBeats, q)
		delete(s.Graces, q)
		delete(s.Away, q)
		delete(s.Clear, q)
		for i := range s.Owners {
			if s.Owners[i] == q {
				s.Owners[i] = ""
			}
		}
		s.appendDeparted(q)
	}
}

// appendDeparted is P5.
func (s *State) appendDeparted(q string) {
	s.Departed = append(s.Departed, q)
	s.Departed = s.Departed[max(0, len(s.Departed)-maxDeparted):]
}

// A departure is an incarnation that departs, and its grace.
type departure struct {
	incarnation string
	grace       float64
}

// depart is P2.
func (s *State) depart(o int64, list []departure) {
	going, gone := map[string]float64{}, []string{}
	for _, d := range list {
		drained := false
		if seat := s.seat(d.incarnation); seat != nil {
			_, drained = s.Drains[seat.Name]
		}
		if d.grace > 0 && s.Version >= 3 && !drained {
			going[d.incarnation] = d.grace
		} else {
			gone = append(gone, d.incarnation)
		}
	}
	if len(going) == 0 {
		s.unseat(gone)
		s.retarget(o, s.Owners, nil)
		return
	}
	for q, grace := range going {
		s.Away[q] = grace
		s.LastBeats[q] = o
	}
	var passing []int
	quiet := len(gone) == 0 // Nothing but the passing partitions changes.
	for i, owner := range s.Owners {
		target := s.Targets[i]
		_, ownerGoes := going[owner]
		_, targetGoes := going[target]
		if ownerGoes && s.isMember(target) && !slices.Contains(gone, target) {
			passing = append(passing, i)
		}
		quiet = quiet && (!targetGoes || ownerGoes)
	}
	if quiet {
		s.computeStandbys()
		for _, i := range passing {
			s.give(o, i, s.Targets[i])
		}
		return
	}
	s.unseat(gone)
	kept := slices.Clone(s.Owners)
	for _, i := range passing {
		kept[i] = s.Targets[i]
	}
	s.retarget(o, kept, passing)
}

// retarget is P3.
func (s *State) retarget(o int64, kept []string, passing []int) {
	var preferred []string
	if s.Version >= 3 {
		preferred = slices.Clone(s.Targets)
		for i, target := range s.Targets {
			if standby := s.standby(i); !s.isMember(target) && standby != "" {
				preferred[i] = standby
			}
		}
	}
	s.Targets = s.situation(kept).assign(kept, preferred, s.Loads)
	s.computeStandbys()
	for i, owner := range s.Owners {
		if owner == "" && s.Targets[i] != "" {
			s.give(o, i, s.Targets[i])
		}
	}
	for _, i := range passing {
		if s.Targets[i] != "" {
			s.give(o, i, s.Targets[i])
		}
	}
}

// give is P4.
func (s *State) give(o int64, i int, to string) {
	s.Owners[i], s.Terms[i], s.Began[i] = to, s.Base+o, o
}

// computeStandbys is P6.
func (s *State) computeStandbys() {
	if s.Version >= 3 {
		s.Standbys = s.situation(s.Targets).standbys(s.Targets, s.Standbys)
	}
}
