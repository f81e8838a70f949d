package neli

import (
	"maps"
	"slices"
)

// A Seat is the place of a member, or of one that is away.
type Seat struct {
	Incarnation, Name, Address string
	Weight                     int64
	Zone                       string
	Versions                   [2]int64
	Joined                     int64
	Witness                    string
}

// A State is what a ledger stands for. In Owners, Targets and Standbys, an empty text is None.
// The fields are for readers. Only Fold changes them.
type State struct {
	At                int64
	Genesis           *Genesis
	GenesisAt         int64
	Version, Base     int64
	Seats             []Seat
	LastBeats         map[string]int64
	Owners            []string
	Terms, Began      []int64
	Targets, Standbys []string
	Pins              map[int64]string
	Drains            map[string]int64
	Weights           []Entry[string, int64]
	Loads             map[int64]float64
	Departed          []string
	Graces, Away      map[string]float64
	Clear             map[string]int64
	shuffled          []int  // the partitions in shuffled order
	digest            Digest // valid if known is true
	known             bool
}

// NewState gives the state of the empty ledger.
func NewState() *State {
	return &State{
		LastBeats: map[string]int64{},
		Pins:      map[int64]string{},
		Drains:    map[string]int64{},
		Loads:     map[int64]float64{},
		Graces:    map[string]float64{},
		Away:      map[string]float64{},
		Clear:     map[string]int64{},
	}
}

func (s *State) isAway(incarnation string) bool {
	_, away := s.Away[incarnation]
	return away
}

// isMember says whether an incarnation has a seat and is not away.
func (s *State) isMember(incarnation string) bool {
	_, seated := s.LastBeats[incarnation]
	return seated && !s.isAway(incarnation)
}

// seat gives the seat of an incarnation, or nil.
func (s *State) seat(incarnation string) *Seat {
	at := slices.IndexFunc(s.Seats, func(seat Seat) bool { return seat.Incarnation == incarnation })
	if at < 0 {
		return nil
	}
	return &s.Seats[at]
}

// holder gives the seat that has a name, or nil.
func (s *State) holder(name string) *Seat {
	at := slices.IndexFunc(s.Seats, func(seat Seat) bool { return seat.Name == name })
	if at < 0 {
		return nil
	}
	return &s.Seats[at]
}

// standby gives the standby of a partition. If there are no standbys, all are None.
func (s *State) standby(i int) string {
	if i < len(s.Standbys) {
		return s.Standbys[i]
	}
	return ""
}

// weightAt gives the place of a name in Weights, or -1.
func (s *State) weightAt(name string) int {
	return slices.IndexFunc(s.Weights, func(e Entry[string, int64]) bool { return e.Key == name })
}

// limit is the highest number of names in Drains and in Weights, and of seats.
const limit = 1024

// addDrain adds a name to Drains (rule P7). It returns false if nothing changes.
func (s *State) addDrain(name string, o int64) bool {
	if _, there := s.Drains[name]; there {
		return false
	}
	if len(s.Drains) >= limit {
		oldest := ""
		for drained, at := range s.Drains {
			if (oldest == "" || at < s.Drains[oldest]) && s.holder(drained) == nil {
				oldest = drained
			}
		}
		if oldest == "" {
			return false
		}
		delete(s.Drains, oldest)
	}
	s.Drains[name] = o
	return true
}

// setWeight sets or, with nil, removes a name in Weights (rules F18 and P7). It returns false if nothing changes.
func (s *State) setWeight(name string, weight *int64) bool {
	at := s.weightAt(name)
	switch {
	case weight == nil && at < 0 || weight != nil && at >= 0 && s.Weights[at].Value == *weight:
		return false
	case weight == nil:
		s.Weights = slices.Delete(s.Weights, at, at+1)
		return true
	case at >= 0:
		s.Weights[at].Value = *weight
		return true
	}
	if len(s.Weights) >= limit {
		oldest := slices.IndexFunc(s.Weights, func(e Entry[string, int64]) bool { return s.holder(e.Key) == nil })
		if oldest < 0 {
			return false
		}
		s.Weights = slices.Delete(s.Weights, oldest, oldest+1)
	}
	s.Weights = append(s.Weights, Entry[string, int64]{name, *weight})
	return true
}

// setLoads sets loads and removes those of 0 (rule F19). It returns false if nothing changes.
func (s *State) setLoads(loads []Entry[int64, float64]) bool {
	before := maps.Clone(s.Loads)
	for _, e := range loads {
		if e.Key < int64(len(s.Owners)) {
			s.Loads[e.Key] = e.Value
		}
	}
	maps.DeleteFunc(s.Loads, func(_ int64, load float64) bool { return load == 0 })
	return !maps.Equal(before, s.Loads)
}

// order gives the partitions in shuffled order.
func (s *State) order() []int {
	if len(s.shuffled) != len(s.Owners) {
		s.shuffled = shuffled(len(s.Owners))
	}
	return s.shuffled
}
