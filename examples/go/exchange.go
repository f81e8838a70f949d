package neli

import (
	"cmp"
	"math/big"
	"slices"
	"sort"
)

const maxExchanges = 8

// A part is a candidate that takes part in exchanges.
type part struct {
	position int
	weight   int64
	load     *big.Int // that of all its partitions
	burden   *big.Int
	movable  []int // its partitions without a pin, the lightest first
}

// exchange is rule A12. It changes targets.
func (t *situation) exchange(targets []int, whole []*big.Int) {
	byLoad := func(a, b int) int { return cmp.Or(whole[a].Cmp(whole[b]), cmp.Compare(a, b)) }
	parts := make([]*part, len(t.weights))
	for c, weight := range t.weights {
		parts[c] = &part{position: c, weight: weight, load: new(big.Int)}
	}
	total := new(big.Int)
	for i, c := range targets {
		total.Add(total, whole[i])
		if c == nobody {
			continue
		}
		parts[c].load.Add(parts[c].load, whole[i])
		if t.pins[i] == nobody {
			parts[c].movable = append(parts[c].movable, i)
		}
	}
	leastShift := new(big.Int).Div(total, big.NewInt(8*int64(len(targets))))
	carried, weights := new(big.Int), int64(0)
	var ranking []*part
	for _, p := range parts {
		if p.weight == 0 {
			continue // A candidate without a weight has only pinned partitions.
		}
		carried.Add(carried, p.load)
		weights += p.weight
		p.burden = burden(p.load, p.weight)
		slices.SortFunc(p.movable, byLoad)
		if len(p.movable) > 0 {
			ranking = append(ranking, p)
		}
	}
	fair := burden(carried, weights)
	byBurden := func(a, b *part) int { return cmp.Or(a.burden.Cmp(b.burden), cmp.Compare(a.position, b.position)) }
	slices.SortFunc(ranking, byBurden)
	for r, exchanges := len(ranking)-1, 0; r > 0 && exchanges < maxExchanges && ranking[r].burden.Cmp(fair) > 0; {
		heavy := ranking[r]
		hottest := whole[heavy.movable[len(heavy.movable)-1]]
		light := slices.MinFunc(ranking[:r], func(a, b *part) int {
			return burdenWith(a, hottest).Cmp(burdenWith(b, hottest))
		})
		h, c, found := findPair(heavy, light, whole, leastShift)
		if !found {
			r--
			continue
		}
		hot, cold := heavy.movable[h], light.movable[c]
		shift := new(big.Int).Sub(whole[hot], whole[cold])
		targets[hot], targets[cold] = light.position, heavy.position
		heavy.movable[h], light.movable[c] = cold, hot
		heavy.load.Sub(heavy.load, shift)
		light.load.Add(light.load, shift)
		for _, p := range []*part{heavy, light} {
			p.burden = burden(p.load, p.weight)
			slices.SortFunc(p.movable, byLoad)
		}
		slices.SortFunc(ranking, byBurden)
		exchanges++
	}
}

// burdenWith gives the burden of a part if its load were higher.
func burdenWith(p *part, more *big.Int) *big.Int {
	return burden(new(big.Int).Add(p.load, more), p.weight)
}

// findPair is step 5 of rule A12. It gives the places of the hot and the cold partition among the movables.
func findPair(heavy, light *part, whole []*big.Int, leastShift *big.Int) (hot, cold int, found bool) {
	peak := heavy.burden
	level := new(big.Int).Mul(heavy.load, big.NewInt(light.weight))
	level.Sub(level, new(big.Int).Mul(light.load, big.NewInt(heavy.weight)))
	level.Div(level, big.NewInt(heavy.weight+light.weight))
	for h := len(heavy.movable) - 1; h >= 0; h-- {
		load := whole[heavy.movable[h]]
		if new(big.Int).Sub(load, whole[light.movable[0]]).Cmp(leastShift) <= 0 {
			break
		}
		least := new(big.Int).Sub(load, level)
		n := sort.Search(len(light.movable), func(c int) bool { return whole[light.movable[c]].Cmp(least) >= 0 })
		for c := max(0, n-1); c <= n && c < len(light.movable); c++ {
			shift := new(big.Int).Sub(load, whole[light.movable[c]])
			after := burdenWith(heavy, new(big.Int).Neg(shift))
			if other := burdenWith(light, shift); other.Cmp(after) > 0 {
				after = other
			}
			if shift.Cmp(leastShift) > 0 && after.Cmp(peak) < 0 {
				peak, hot, cold, found = after, h, c, true
			}
		}
	}
	return hot, cold, found
}
