package neli

import (
	"cmp"
	"math/big"
	"slices"
)

// nobody stands for None among the positions of candidates.
const nobody = -1

// A situation is what an assignment depends on (rule P8). Candidates are numbered by position.
type situation struct {
	incarnations []string
	positions    map[string]int
	weights      []int64 // those that count (rule A7)
	zones        []string
	allDrained   bool
	pins         []int // for each partition the candidate that it is pinned to, or nobody
	order        []int // the partitions in shuffled order
}

// situation gives the situation of the present seats with kept.
func (s *State) situation(kept []string) *situation {
	n := len(s.Seats)
	t := &situation{
		incarnations: make([]string, n), positions: make(map[string]int, n), weights: make([]int64, n),
		zones: make([]string, n), allDrained: true, pins: make([]int, len(s.Owners)), order: s.order(),
	}
	overrides := make(map[string]int64, len(s.Weights))
	for _, e := range s.Weights {
		overrides[e.Key] = e.Value
	}
	byName, drained := make(map[string]int, n), make([]bool, n)
	for c, seat := range s.Seats {
		t.incarnations[c] = seat.Incarnation
		t.positions[seat.Incarnation], byName[seat.Name] = c, c
		t.weights[c] = seat.Weight
		if override, there := overrides[seat.Name]; there {
			t.weights[c] = override
		}
		if s.Version >= 3 {
			t.zones[c] = seat.Zone
		}
		_, drained[c] = s.Drains[seat.Name]
		drained[c] = drained[c] || s.isAway(seat.Incarnation)
		t.allDrained = t.allDrained && drained[c]
	}
	t.countWeights(drained)
	for i := range t.pins {
		t.pins[i] = nobody
		if s.isAway(kept[i]) {
			t.pins[i] = t.position(kept[i])
		}
	}
	for i, name := range s.Pins {
		if i < int64(len(t.pins)) {
			t.pins[i] = nobody
			if c, there := byName[name]; there {
				t.pins[i] = c
			}
		}
	}
	return t
}

// countWeights is rule A7.
func (t *situation) countWeights(drained []bool) {
	for c := range t.weights {
		if drained[c] && !t.allDrained {
			t.weights[c] = 0
		}
	}
	if hasWeight(t.weights) {
		return
	}
	for c := range t.weights {
		if t.allDrained || !drained[c] {
			t.weights[c] = 1
		}
	}
}

func hasWeight(weights []int64) bool {
	return slices.ContainsFunc(weights, func(w int64) bool { return w > 0 })
}

// position gives the position of an incarnation, or nobody if it is not a candidate.
func (t *situation) position(incarnation string) int {
	if c, there := t.positions[incarnation]; there {
		return c
	}
	return nobody
}

func (t *situation) allPositions(incarnations []string) []int {
	list := make([]int, len(incarnations))
	for i, incarnation := range incarnations {
		list[i] = t.position(incarnation)
	}
	return list
}

// burden gives (load * 2^64) // weight. The weight is above 0.
func burden(load *big.Int, weight int64) *big.Int {
	shifted := new(big.Int).Lsh(load, 64)
	return shifted.Div(shifted, big.NewInt(weight))
}

func isKept(place, keeps, of int64) bool {
	return of > 0 && place*keeps%of < keeps
}

// wholeLoads is rule A8.
func wholeLoads(loads map[int64]float64, m int) []*big.Int {
	unit, sum, k := big.NewInt(1), new(big.Int), int64(0)
	fractions := make([]*big.Rat, m)
	for i, load := range loads {
		if i < int64(m) {
			fractions[i] = new(big.Rat).SetFloat64(load)
			k++
			if d := fractions[i].Denom(); d.Cmp(unit) > 0 {
				unit = d // All denominators are powers of two, so the greatest is the least common multiple.
			}
		}
	}
	whole := make([]*big.Int, m)
	for i, f := range fractions {
		if f != nil {
			n := new(big.Int).Div(unit, f.Denom())
			n.Mul(n, f.Num())
			sum.Add(sum, n)
			whole[i] = n.Mul(n, big.NewInt(k))
		}
	}
	// The loads above are known * k, and the sum is that of known.
	for i := range whole {
		if whole[i] == nil {
			whole[i] = sum
		}
	}
	if allEqual(whole) {
		for i := range whole {
			whole[i] = big.NewInt(1)
		}
	}
	return whole
}

func allEqual(loads []*big.Int) bool {
	return !slices.ContainsFunc(loads, func(x *big.Int) bool { return x.Cmp(loads[0]) != 0 })
}

// counts is rule A9: how many of total partitions each candidate should have.
func counts(total int64, weights, given, held []int64, zones []string) []int64 {
	result := slices.Clone(given)
	var sharing []int
	for c := range weights {
		sharing = append(sharing, c)
	}
	var sum, ceilings int64
	for len(sharing) > 0 {
		sum = 0
		for _, c := range sharing {
			sum += weights[c]
		}
		if sum == 0 {
			return result
		}
		ceilings = total
		var above, leaving []int
		for _, c := range sharing {
			result[c] = total * weights[c] / sum
			ceilings -= result[c]
			if given[c] > result[c] {
				above = append(above, c)
				if (given[c]-1)*sum >= total*weights[c] {
					leaving = append(leaving, c)
				}
			}
		}
		if leaving == nil && int64(len(above)) > ceilings {
			leaving = above
		}
		if leaving == nil {
			break
		}
		for _, c := range leaving {
			total -= given[c]
			result[c] = given[c]
		}
		sharing = slices.DeleteFunc(sharing, func(c int) bool { return slices.Contains(leaving, c) })
	}
	type claim struct {
		candidate, given, held, turn int
		burden                       *big.Int
	}
	var rounded []claim
	for _, c := range sharing {
		if total*weights[c]%sum == 0 {
			continue
		}
		r := claim{candidate: c, given: 1, held: 1, burden: burden(big.NewInt(given[c]+held[c]), weights[c])}
		if given[c] > result[c] {
			r.given = 0
		}
		if given[c]+held[c] > result[c] {
			r.held = 0
		}
		rounded = append(rounded, r)
	}
	compare := func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.given, b.given), cmp.Compare(a.held, b.held), a.burden.Cmp(b.burden),
			cmp.Compare(a.turn, b.turn))
	}
	slices.SortStableFunc(rounded, compare)
	turns := map[string]int{}
	for i := range rounded {
		zone := zones[rounded[i].candidate]
		rounded[i].turn = turns[zone]
		turns[zone]++
	}
	slices.SortStableFunc(rounded, compare)
	for _, r := range rounded[:min(ceilings, int64(len(rounded)))] {
		result[r.candidate]++
	}
	return result
}

// rooms gives how many more partitions each candidate should have.
func rooms(counts, given, held []int64) []int64 {
	room := make([]int64, len(counts))
	for c := range room {
		room[c] = max(0, counts[c]-given[c]-held[c])
	}
	return room
}

// assign gives the targets (rules A1 to A6). Without preferred, nothing is preferred.
func (t *situation) assign(keptBy, preferred []string, loads map[int64]float64) []string {
	m, n := len(t.pins), len(t.weights)
	if n == 0 {
		return make([]string, m)
	}
	kept, whole := t.allPositions(keptBy), wholeLoads(loads, m)
	given, held, keeps := make([]int64, n), make([]int64, n), make([]int64, n)
	for i, pin := range t.pins {
		if pin != nobody {
			given[pin]++
		} else if kept[i] != nobody {
			held[kept[i]]++
		}
	}
	share := counts(int64(m), t.weights, given, held, t.zones)
	room := rooms(share, given, held)
	for c := range keeps {
		keeps[c] = share[c] - given[c]
	}

	var wanted []int // rule A2
	for _, i := range t.order {
		if preferred != nil && t.pins[i] == nobody && preferred[i] != "" && preferred[i] != keptBy[i] {
			wanted = append(wanted, i)
		}
	}
	granted := map[int]int{} // rule A10
	for _, unowned := range []bool{true, false} {
		for _, i := range wanted {
			c, to := kept[i], t.position(preferred[i])
			if (c == nobody) != unowned || to == nobody || room[to] == 0 || c != nobody && held[c] <= keeps[c] {
				continue
			}
			granted[i] = to
			room[to]--
			if c != nobody {
				held[c]--
			}
		}
	}
	for _, i := range wanted {
		if c := kept[i]; c != nobody && held[c] > keeps[c] {
			if _, there := granted[i]; !there {
				granted[i] = nobody
				held[c]--
			}
		}
	}

	targets := t.deal(kept, whole, granted, keeps, held, room)
	if !allEqual(whole) {
		t.exchange(targets, whole)
	}
	result := make([]string, m)
	for i, c := range targets {
		if c != nobody {
			result[i] = t.incarnations[c]
		}
	}
	return result
}

// deal is rule A11.
func (t *situation) deal(kept []int, whole []*big.Int, granted map[int]int, keeps, held, room []int64) []int {
	order := make([]int, len(kept))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return whole[b].Cmp(whole[a]) })
	targets, homeless := make([]int, len(kept)), []int{}
	places, carried := make([]int64, len(room)), make([]*big.Int, len(room))
	for c := range carried {
		carried[c] = new(big.Int)
	}
	for _, i := range order {
		c := t.pins[i]
		if to, there := granted[i]; c == nobody && there {
			c = to
		} else if owner := kept[i]; c == nobody && owner != nobody {
			if isKept(places[owner], keeps[owner], held[owner]) {
				c = owner
			}
			places[owner]++
		}
		targets[i] = c
		if c == nobody {
			homeless = append(homeless, i)
		} else {
			carried[c].Add(carried[c], whole[i])
		}
	}
	burdens := make([]*big.Int, len(room))
	for c, weight := range t.weights {
		if room[c] > 0 { // Only a candidate with a weight has room.
			burdens[c] = burden(carried[c], weight)
		}
	}
	for _, i := range homeless {
		best := nobody
		for c := range room {
			if room[c] > 0 && (best == nobody || burdens[c].Cmp(burdens[best]) < 0) {
				best = c
			}
		}
		if best == nobody {
			break
		}
		targets[i] = best
		room[best]--
		carried[best].Add(carried[best], whole[i])
		burdens[best] = burden(carried[best], t.weights[best])
	}
	return targets
}
