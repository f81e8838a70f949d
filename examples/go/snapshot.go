package neli

import (
	"errors"
	"slices"
)

// An Image is the state in a Snapshot. The owners, targets and standbys are places in Seats; -1 is None.
type Image struct {
	Genesis                   Genesis
	GenesisAt, Version, Base  int64
	Seats                     []Seat
	LastBeats                 []int64
	Owners, Targets, Standbys []int64
	Terms, Began              []int64
	Pins                      map[int64]string
	Drains                    map[string]int64
	Weights                   []Entry[string, int64]
	Loads                     map[int64]float64
	Departed                  []string
	Digest                    Digest
	Graces, Away              map[string]float64
	Clear                     map[string]int64
}

// set reads an image in a record of the given format.
func (m *Image) set(format int64) setter {
	return func(value any) bool {
		*m = Image{}
		members, ok := value.(object)
		return ok && read(members, m.fields(), &format) == nil
	}
}

func (m *Image) fields() []field {
	return []field{
		{"genesis", must, m.Genesis.setInImage},
		{"genesis_at", must, offset(&m.GenesisAt)},
		{"version", must, version(&m.Version)},
		{"base", must, base(&m.Base)},
		{"seats", must, list(&m.Seats, seat)},
		{"last_beats", must, list(&m.LastBeats, offset)},
		{"owners", must, list(&m.Owners, place)},
		{"targets", must, list(&m.Targets, place)},
		{"terms", must, list(&m.Terms, offset)},
		{"began", must, list(&m.Began, offset)},
		{"pins", must, unordered(&m.Pins, offsetKey, name)},
		{"drains", must, unordered(&m.Drains, name, offset)},
		{"weights", must, mapping(&m.Weights, name, weight)},
		{"loads", must, unordered(&m.Loads, offsetKey, amount)},
		{"departed", must, list(&m.Departed, name)},
		{"digest", must, digest(&m.Digest)},
		{"graces", mayFormat2, unordered(&m.Graces, name, grace)},
		{"away", mayFormat2, unordered(&m.Away, name, grace)},
		{"clear", mayFormat2, unordered(&m.Clear, name, offset)},
		{"standbys", mayFormat2, list(&m.Standbys, place)},
	}
}

// setInImage reads the genesis of an image. Its kind may be missing, and its format is its own.
func (b *Genesis) setInImage(value any) bool {
	*b = Genesis{Format: 1}
	members, ok := value.(object)
	var kind string
	fields := append(b.fields(1),
		field{"kind", may, oneOf(&kind, "genesis")},
		field{"by", must, name(&b.By)},
		field{"v", may, integer(&b.Format, 1, 2)})
	return ok && read(members, fields, &b.Format) == nil
}

func seat(to *Seat) setter {
	return tuple(7, name(&to.Incarnation), name(&to.Name), text(&to.Address), weight(&to.Weight), text(&to.Zone),
		versions(&to.Versions), offset(&to.Joined), text(&to.Witness))
}

// Restore gives the state of a snapshot. It returns an error if the snapshot is bad (rule S2).
// The state takes over the lists and maps of the image.
func (b *Snapshot) Restore() (*State, error) {
	m, s := &b.State, NewState()
	length := int(m.Genesis.Layout.Partitions)
	for _, list := range [][]int64{m.Owners, m.Targets, m.Terms, m.Began} {
		if len(list) != length {
			return nil, errors.New("bad snapshot: a list has another length than the number of partitions")
		}
	}
	if m.Standbys != nil && len(m.Standbys) != length || len(m.LastBeats) != len(m.Seats) {
		return nil, errors.New("bad snapshot: a list has another length")
	}
	incarnations := func(places []int64) ([]string, bool) {
		list := make([]string, len(places))
		for i, place := range places {
			if place >= int64(len(m.Seats)) {
				return nil, false
			}
			if place >= 0 {
				list[i] = m.Seats[place].Incarnation
			}
		}
		return list, true
	}
	var ok [3]bool
	s.Owners, ok[0] = incarnations(m.Owners)
	s.Targets, ok[1] = incarnations(m.Targets)
	s.Standbys, ok[2] = incarnations(m.Standbys)
	if slices.Contains(ok[:], false) {
		return nil, errors.New("bad snapshot: a place is not a seat")
	}
	for i, seat := range m.Seats {
		s.LastBeats[seat.Incarnation] = m.LastBeats[i]
	}
	s.At, s.Genesis, s.GenesisAt, s.Version, s.Base = b.Upto, &m.Genesis, m.GenesisAt, m.Version, m.Base
	s.Seats, s.Terms, s.Began, s.Departed = m.Seats, m.Terms, m.Began, m.Departed
	s.Pins, s.Drains, s.Weights, s.Loads = m.Pins, m.Drains, m.Weights, m.Loads
	if m.Graces != nil {
		s.Graces = m.Graces
	}
	if m.Away != nil {
		s.Away = m.Away
	}
	if m.Clear != nil {
		s.Clear = m.Clear
	}
	if s.Digest() != m.Digest {
		return nil, errors.New("bad snapshot: its digest is not that of its state")
	}
	return s, nil
}
