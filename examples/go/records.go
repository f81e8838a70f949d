// Package neli reads the ledger of a group of the protocol induction. It computes who owns each partition.
// The names of rules (K1, F7, A12) are those of the specification.
package neli

import "errors"

// A Record is a decoded record of a ledger.
type Record struct {
	Kind   string
	By     string
	Format int64
	Body   Body
}

// A Body has the fields of one kind of record. It is a pointer to one of the types below.
type Body interface {
	fields(format int64) []field
}

type (
	// Genesis founds the group. By and Format are those of its record.
	Genesis struct {
		By        string
		Format    int64
		Layout    Layout
		Lease     float64
		Guarantee string
		Base      int64
		Version   int64
		At        int64
	}
	// Join asks for a seat. Grace is nil if it is absent.
	Join struct {
		Name, Address string
		Weight        int64
		Zone          string
		Versions      [2]int64
		At            int64
		Witness       string
		Floor         int64
		Grace         *float64
	}
	// Beat says that its writer lives. Digest and Clear are nil if they are absent.
	Beat struct {
		SentAt float64
		At     int64
		Digest *Digest
		Clear  *int64
	}
	// Expire says that members were silent. LastBeats has one entry in format 1, too.
	Expire struct {
		LastBeats   []Entry[string, int64]
		incarnation string
		lastBeat    int64
	}
	// Certify says that a process has ended.
	Certify struct{ Incarnation string }
	// Handover gives partitions away. Terms has one entry in format 1, too.
	Handover struct {
		Terms           []Entry[int64, int64]
		partition, term int64
	}
	// Leave ends a membership.
	Leave struct{ Grace float64 }
	// Drain asks that a member has no partitions.
	Drain struct{ Name string }
	// Undrain ends a drain.
	Undrain struct{ Name string }
	// Pin binds a partition to a name.
	Pin struct {
		Partition int64
		Name      string
	}
	// Unpin ends a pin.
	Unpin struct{ Partition int64 }
	// Weigh overrides a weight. Weight is nil for the member's own weight.
	Weigh struct {
		Name   string
		Weight *int64
	}
	// Load sets the loads of partitions.
	Load struct{ Loads []Entry[int64, float64] }
	// Upgrade asks for a newer version of the fold.
	Upgrade struct{ Version int64 }
	// Snapshot is a state, written down.
	Snapshot struct {
		State Image
		Upto  int64
	}
)

var kinds = map[string]func() Body{
	"genesis": func() Body { return new(Genesis) }, "join": func() Body { return new(Join) },
	"beat": func() Body { return new(Beat) }, "expire": func() Body { return new(Expire) },
	"certify": func() Body { return new(Certify) }, "handover": func() Body { return new(Handover) },
	"leave": func() Body { return new(Leave) }, "drain": func() Body { return new(Drain) },
	"undrain": func() Body { return new(Undrain) }, "pin": func() Body { return new(Pin) },
	"unpin": func() Body { return new(Unpin) }, "weigh": func() Body { return new(Weigh) },
	"load": func() Body { return new(Load) }, "upgrade": func() Body { return new(Upgrade) },
	"snapshot": func() Body { return new(Snapshot) },
}

const (
	maxRecord  = 8_388_608
	maxNesting = 33
)

// Decode reads a record. If readers skip the bytes, it returns an error that says why.
func Decode(payload []byte) (*Record, error) {
	if len(payload) > maxRecord {
		return nil, errors.New("too long")
	}
	value, depth, err := parse(payload)
	if err != nil {
		return nil, err
	}
	members, ok := value.(object)
	if !ok {
		return nil, errors.New("not an object")
	}
	r, hasExt := &Record{Format: 1}, false
	head := []field{
		{"kind", must, func(value any) bool {
			before := r.Kind
			r.Kind, _ = value.(string)
			return kinds[r.Kind] != nil && (before == "" || before == r.Kind)
		}},
		{"by", must, name(&r.By)},
		{"v", may, integer(&r.Format, 1, 2)},
		{"ext", mayFormat2, func(value any) bool {
			_, hasExt = value.(object)
			return hasExt
		}},
	}
	// The other fields are read second, because some depend on the format.
	var first, second object
	for _, m := range members {
		switch m.name {
		case "kind", "by", "v", "ext":
			first = append(first, m)
		default:
			second = append(second, m)
		}
	}
	if err := read(first, head, &r.Format); err != nil {
		return nil, err
	}
	if hasExt && depth > maxNesting {
		return nil, errors.New("nested too deep")
	}
	r.Body = kinds[r.Kind]()
	if err := read(second, r.Body.fields(r.Format), &r.Format); err != nil {
		return nil, err
	}
	switch b := r.Body.(type) {
	case *Genesis:
		b.By, b.Format = r.By, r.Format
	case *Expire:
		if r.Format == 1 {
			b.LastBeats = []Entry[string, int64]{{b.incarnation, b.lastBeat}}
		}
	case *Handover:
		if r.Format == 1 {
			b.Terms = []Entry[int64, int64]{{b.partition, b.term}}
		}
	}
	return r, nil
}

func (b *Genesis) fields(int64) []field {
	return []field{
		{"layout", must, layout(&b.Layout)},
		{"lease", must, double(&b.Lease, 0.01, 3600)},
		{"guarantee", must, oneOf(&b.Guarantee, "exclusive", "available")},
		{"base", must, base(&b.Base)},
		{"version", must, version(&b.Version)},
		{"at", may, offset(&b.At)},
	}
}

func layout(to *Layout) setter {
	return func(value any) bool {
		*to = Layout{Slots: 16384, Partitions: 256}
		members, ok := value.(object)
		format := int64(1)
		return ok && read(members, []field{
			{"slots", may, integer(&to.Slots, 1, 1<<32)},
			{"partitions", may, integer(&to.Partitions, 1, 1<<32)},
			{"tags", may, boolean(&to.Tags)},
		}, &format) == nil && to.Partitions <= to.Slots
	}
}

func (b *Join) fields(int64) []field {
	b.Weight = 1
	return []field{
		{"name", must, name(&b.Name)},
		{"address", may, text(&b.Address)},
		{"weight", may, weight(&b.Weight)},
		{"zone", may, text(&b.Zone)},
		{"versions", must, versions(&b.Versions)},
		{"at", must, offset(&b.At)},
		{"witness", may, text(&b.Witness)},
		{"floor", may, base(&b.Floor)},
		{"grace", mayFormat2, pointer(&b.Grace, grace)},
	}
}

func (b *Beat) fields(int64) []field {
	return []field{
		{"sent_at", must, double(&b.SentAt, -1e12, 1e12)},
		{"at", must, offset(&b.At)},
		{"digest", mustFormat1, pointer(&b.Digest, digest)},
		{"clear", mayFormat2, pointer(&b.Clear, offset)},
	}
}

func (b *Expire) fields(int64) []field {
	return []field{
		{"incarnation", onlyFormat1, name(&b.incarnation)},
		{"last_beat", onlyFormat1, offset(&b.lastBeat)},
		{"last_beats", onlyFormat2, filled(mapping(&b.LastBeats, name, offset))},
	}
}

func (b *Certify) fields(int64) []field {
	return []field{{"incarnation", must, name(&b.Incarnation)}}
}

func (b *Handover) fields(int64) []field {
	return []field{
		{"partition", onlyFormat1, offset(&b.partition)},
		{"term", onlyFormat1, offset(&b.term)},
		{"terms", onlyFormat2, filled(mapping(&b.Terms, offsetKey, offset))},
	}
}

func (b *Leave) fields(int64) []field   { return []field{{"grace", may, grace(&b.Grace)}} }
func (b *Drain) fields(int64) []field   { return []field{{"name", must, name(&b.Name)}} }
func (b *Undrain) fields(int64) []field { return []field{{"name", must, name(&b.Name)}} }
func (b *Unpin) fields(int64) []field   { return []field{{"partition", must, offset(&b.Partition)}} }
func (b *Upgrade) fields(int64) []field { return []field{{"version", must, version(&b.Version)}} }

func (b *Pin) fields(int64) []field {
	return []field{{"partition", must, offset(&b.Partition)}, {"name", must, name(&b.Name)}}
}

func (b *Weigh) fields(int64) []field {
	set := pointer(&b.Weight, weight)
	return []field{
		{"name", must, name(&b.Name)},
		{"weight", must, func(value any) bool {
			if value == nil {
				b.Weight = nil
				return true
			}
			return set(value)
		}},
	}
}

func (b *Load) fields(int64) []field {
	return []field{{"loads", must, mapping(&b.Loads, offsetKey, amount)}}
}

func (b *Snapshot) fields(format int64) []field {
	return []field{{"state", must, b.State.set(format)}, {"upto", must, offset(&b.Upto)}}
}
