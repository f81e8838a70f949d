package neli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// A field of a JSON object has a name, a presence and a setter.
type field struct {
	name     string
	presence string
	set      setter
}

// A presence has one letter for each format: the field must be there (!), may be there (?), or is not valid (-).
const (
	must        = "!!"
	may         = "??"
	mustFormat1 = "!?"
	onlyFormat1 = "!-"
	onlyFormat2 = "-!"
	mayFormat2  = "-?"
)

// A setter stores a JSON value. It returns false if the value is not valid.
type setter func(value any) bool

// read stores the members of an object in their fields (rules R3 to R5 and R11). A later value replaces an earlier one.
// The format is a pointer, because one of the fields may set it.
func read(members object, fields []field, format *int64) error {
	seen := make([]bool, len(fields))
	for _, m := range members {
		at := 0
		for at < len(fields) && fields[at].name != m.name {
			at++
		}
		if at == len(fields) {
			return fmt.Errorf("unknown field %q", m.name)
		}
		if !fields[at].set(m.value) {
			return fmt.Errorf("invalid value of field %q", m.name)
		}
		seen[at] = true
	}
	for at, f := range fields {
		if presence := f.presence[*format-1]; seen[at] && presence == '-' || !seen[at] && presence == '!' {
			return fmt.Errorf("field %q: format %d", f.name, *format)
		}
	}
	return nil
}

const (
	maxOffset = 1<<53 - 1
	maxBase   = 1 << 52
)

// integer accepts whole numbers without a fraction and without an exponent (rule R6).
func integer(to *int64, low, high int64) setter {
	return func(value any) bool {
		number, ok := value.(json.Number)
		if !ok {
			return false
		}
		x, err := strconv.ParseInt(string(number), 10, 64)
		*to = x
		return err == nil && low <= x && x <= high
	}
}

func offset(to *int64) setter  { return integer(to, 0, maxOffset) }
func version(to *int64) setter { return integer(to, 1, maxOffset) }
func base(to *int64) setter    { return integer(to, 0, maxBase) }
func weight(to *int64) setter  { return integer(to, 0, 1_000_000) }
func place(to *int64) setter   { return integer(to, -1, maxOffset) }

// offsetKey accepts the keys of maps with integer keys (rule R8).
func offsetKey(to *int64) setter {
	return func(value any) bool {
		text, _ := value.(string)
		x, err := strconv.ParseInt(text, 10, 64)
		*to = x
		return err == nil && 0 <= x && x <= maxOffset && (text == strconv.FormatInt(x, 10) || text == "-0")
	}
}

// double accepts any number in a range (rule R7).
func double(to *float64, low, high float64) setter {
	return func(value any) bool {
		number, ok := value.(json.Number)
		if !ok {
			return false
		}
		x, err := strconv.ParseFloat(string(number), 64)
		*to = x
		return err == nil && low <= x && x <= high
	}
}

func grace(to *float64) setter  { return double(to, 0, 3600) }
func amount(to *float64) setter { return double(to, 0, 1e15) }

func boolean(to *bool) setter {
	return func(value any) (ok bool) {
		*to, ok = value.(bool)
		return ok
	}
}

// text accepts up to 256 code points without those that rule R9 excludes.
func text(to *string) setter {
	return func(value any) (ok bool) {
		*to, ok = value.(string)
		if !ok || utf8.RuneCountInString(*to) > 256 {
			return false
		}
		for _, r := range *to {
			if excluded(r) {
				return false
			}
		}
		return true
	}
}

func name(to *string) setter {
	set := text(to)
	return func(value any) bool { return set(value) && *to != "" }
}

func excluded(r rune) bool {
	for _, span := range [...][2]rune{
		{0, 0x1f}, {0x7f, 0x9f}, {0xad, 0xad}, {0x61c, 0x61c}, {0x200b, 0x200f}, {0x2028, 0x202e},
		{0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f},
	} {
		if span[0] <= r && r <= span[1] {
			return true
		}
	}
	return false
}

func oneOf(to *string, choices ...string) setter {
	return func(value any) bool {
		*to, _ = value.(string)
		for _, choice := range choices {
			if *to == choice {
				return true
			}
		}
		return false
	}
}

func digest(to *Digest) setter {
	return func(value any) bool {
		text, _ := value.(string)
		x, err := strconv.ParseUint(text, 16, 64)
		*to = Digest(x)
		return err == nil && text == to.String()
	}
}

// pointer is for fields that are absent unless they come. It stores a new value each time.
func pointer[T any](to **T, set func(*T) setter) setter {
	return func(value any) bool {
		*to = new(T)
		return set(*to)(value)
	}
}

func list[T any](to *[]T, set func(*T) setter) setter {
	return func(value any) bool {
		values, ok := value.([]any)
		*to = make([]T, len(values))
		for i, value := range values {
			ok = ok && set(&(*to)[i])(value)
		}
		return ok
	}
}

// tuple accepts a list with one value for each setter. The last ones may be missing down to a least number.
func tuple(least int, set ...setter) setter {
	return func(value any) bool {
		values, ok := value.([]any)
		ok = ok && least <= len(values) && len(values) <= len(set)
		for i := 0; ok && i < len(values); i++ {
			ok = set[i](values[i])
		}
		return ok
	}
}

func versions(to *[2]int64) setter { return tuple(2, version(&to[0]), version(&to[1])) }

// An Entry is a key of a map and its value.
type Entry[K comparable, V any] struct {
	Key   K
	Value V
}

// mapping reads a map in its order. A key that comes again keeps its first place and gets the last value (rule R5).
func mapping[K comparable, V any](to *[]Entry[K, V], setKey func(*K) setter, setValue func(*V) setter) setter {
	return func(value any) bool {
		members, ok := value.(object)
		*to = nil
		places := map[K]int{}
		for _, m := range members {
			var e Entry[K, V]
			if !setKey(&e.Key)(m.name) || !setValue(&e.Value)(m.value) {
				return false
			}
			at, again := places[e.Key]
			if again {
				(*to)[at] = e
				continue
			}
			places[e.Key] = len(*to)
			*to = append(*to, e)
		}
		return ok
	}
}

// unordered reads a map whose order does not count.
func unordered[K comparable, V any](to *map[K]V, setKey func(*K) setter, setValue func(*V) setter) setter {
	return func(value any) bool {
		var entries []Entry[K, V]
		ok := mapping(&entries, setKey, setValue)(value)
		*to = make(map[K]V, len(entries))
		for _, e := range entries {
			(*to)[e.Key] = e.Value
		}
		return ok
	}
}

// filled accepts only maps that are not empty.
func filled(set setter) setter {
	return func(value any) bool {
		members, _ := value.(object)
		return len(members) > 0 && set(value)
	}
}
