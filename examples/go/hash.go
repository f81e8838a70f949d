package neli

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
)

// Layout says how keys fall into slots, and slots into partitions.
type Layout struct {
	Slots      int64 `json:"slots"`
	Partitions int64 `json:"partitions"`
	Tags       bool  `json:"tags"`
}

// Slot gives the slot of a key (rules K2 to K4). The key is text in UTF-8, or any bytes.
func (l Layout) Slot(key string) int64 {
	hashed := []byte(key)
	if l.Tags {
		if _, tail, ok := bytes.Cut(hashed, []byte("{")); ok {
			if tag, _, ok := bytes.Cut(tail, []byte("}")); ok && len(tag) > 0 {
				hashed = tag
			}
		}
	}
	return int64(murmur32(hashed)) % l.Slots
}

// Partition gives the partition of a key.
func (l Layout) Partition(key string) int64 {
	return l.Slot(key) % l.Partitions
}

// murmur32 is MurmurHash3_x86_32 with seed 0.
func murmur32(data []byte) uint32 {
	const c1, c2 = 0xcc9e2d51, 0x1b873593
	mix := func(k uint32) uint32 { return bits.RotateLeft32(k*c1, 15) * c2 }
	var h uint32
	rest := data
	for ; len(rest) >= 4; rest = rest[4:] {
		h = bits.RotateLeft32(h^mix(binary.LittleEndian.Uint32(rest)), 13)*5 + 0xe6546b64
	}
	var tail [4]byte
	copy(tail[:], rest)
	h ^= mix(binary.LittleEndian.Uint32(tail[:]))
	h ^= uint32(len(data))
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

// murmur128 is MurmurHash3_x64_128 with seed 0.
func murmur128(data []byte) (h1, h2 uint64) {
	const c1, c2 = 0x87c37b91114253d5, 0x4cf5ad432745937f
	mix1 := func(k uint64) uint64 { return bits.RotateLeft64(k*c1, 31) * c2 }
	mix2 := func(k uint64) uint64 { return bits.RotateLeft64(k*c2, 33) * c1 }
	finish := func(h uint64) uint64 {
		h = (h ^ h>>33) * 0xff51afd7ed558ccd
		h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
		return h ^ h>>33
	}
	rest := data
	for ; len(rest) >= 16; rest = rest[16:] {
		h1 = bits.RotateLeft64(h1^mix1(binary.LittleEndian.Uint64(rest)), 27)
		h1 = (h1+h2)*5 + 0x52dce729
		h2 = bits.RotateLeft64(h2^mix2(binary.LittleEndian.Uint64(rest[8:])), 31)
		h2 = (h2+h1)*5 + 0x38495ab5
	}
	var tail [16]byte
	copy(tail[:], rest)
	h1 ^= mix1(binary.LittleEndian.Uint64(tail[:])) ^ uint64(len(data))
	h2 ^= mix2(binary.LittleEndian.Uint64(tail[8:])) ^ uint64(len(data))
	h1 += h2
	h2 += h1
	h1, h2 = finish(h1), finish(h2)
	h1 += h2
	return h1, h2 + h1
}

// shuffled gives the shuffled order of the partitions 0 to m - 1.
func shuffled(m int) []int {
	type place struct {
		high, low uint64
		partition int
	}
	places := make([]place, m)
	for i := range places {
		low, high := murmur128(strconv.AppendInt(nil, int64(i), 10))
		places[i] = place{high, low, i}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low))
	})
	order := make([]int, m)
	for at, p := range places {
		order[at] = p.partition
	}
	return order
}
