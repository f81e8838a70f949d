package neli

import (
	"cmp"
	"hash/crc32"
	"slices"
	"strconv"
)

const maxPlaces = 16

// places gives the place of each candidate (rule B2), and all different places.
func (t *situation) places() (each, different []string) {
	sortedSet := func(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
	each = slices.Clone(t.zones)
	if len(sortedSet(each)) > maxPlaces {
		for c, zone := range each {
			each[c] = strconv.Itoa(int(crc32.ChecksumIEEE([]byte(zone)) % maxPlaces))
		}
	}
	return each, sortedSet(each)
}

// standbys gives the standby of each partition (rules B1 to B7). The result is empty if there is none at all.
func (t *situation) standbys(targetNames, presentNames []string) []string {
	placeOf, places := t.places()
	if len(places) < 2 || t.allDrained {
		return nil
	}
	n := len(t.weights)
	targets, present := t.allPositions(targetNames), t.allPositions(presentNames)
	given, held, partitions := make([]int64, n), make([]int64, n), make([][]int, n)
	for _, i := range t.order {
		c := targets[i]
		if c == nobody {
			continue
		}
		partitions[c] = append(partitions[c], i)
		if t.pins[i] != nobody {
			given[c]++
		} else {
			held[c]++
		}
	}
	result := make([]string, len(targets))
	for _, place := range places {
		weights, given, held := slices.Clone(t.weights), slices.Clone(given), slices.Clone(held)
		var lost []int
		for c := range placeOf {
			if placeOf[c] == place {
				lost = append(lost, partitions[c]...)
				weights[c], given[c], held[c] = 0, 0, 0
			}
		}
		if len(lost) == 0 || !hasWeight(weights) {
			continue
		}
		share := counts(int64(len(targets)), weights, given, held, t.zones)
		for i, c := range choose(lost, present, rooms(share, given, held)) {
			result[i] = t.incarnations[c]
		}
	}
	return result
}

// choose gives standbys to lost partitions (rules B6 and B7).
func choose(lost, present []int, room []int64) map[int]int {
	former := func(i int) int {
		if i < len(present) {
			return present[i]
		}
		return nobody
	}
	had, keeps, seen := make([]int64, len(room)), make([]int64, len(room)), make([]int64, len(room))
	for _, i := range lost {
		if c := former(i); c != nobody {
			had[c]++
		}
	}
	for c := range keeps {
		keeps[c] = min(had[c], room[c])
	}
	chosen, vacant := map[int]int{}, []int{}
	for _, i := range lost {
		c := former(i)
		if c != nobody {
			seen[c]++
		}
		if c != nobody && isKept(seen[c]-1, keeps[c], had[c]) {
			chosen[i] = c
		} else {
			vacant = append(vacant, i)
		}
	}
	type turn struct {
		at        int64
		candidate int
	}
	var turns []turn
	for c := range room {
		free := room[c] - keeps[c]
		for t := range free {
			turns = append(turns, turn{(2*t + 1) << 32 / free, c})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.candidate, b.candidate))
	})
	for i := range min(len(turns), len(vacant)) {
		chosen[vacant[i]] = turns[i].candidate
	}
	return chosen
}
