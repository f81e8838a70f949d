package neli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"
)

// An object is a JSON object. Its members stand in the order of the text. A name may come more than once.
type object []member

type member struct {
	name  string
	value any
}

// parse reads one JSON value (rules R1 and R2). A value is nil, a bool, a string, a json.Number, a []any or an object.
// The depth is that of the deepest list or object.
//
// The standard scanner checks the syntax. It refuses more than 10,000 levels, but no valid record has that many.
func parse(text []byte) (value any, depth int, err error) {
	if !utf8.Valid(text) || !json.Valid(text) || hasLoneSurrogate(text) {
		return nil, 0, errors.New("not a JSON value in UTF-8")
	}
	p := parser{decoder: json.NewDecoder(bytes.NewReader(text))}
	p.decoder.UseNumber()
	value, err = p.value(1)
	return value, p.deepest, err
}

type parser struct {
	decoder *json.Decoder
	deepest int
}

func (p *parser) value(depth int) (any, error) {
	token, err := p.decoder.Token()
	delim, nested := token.(json.Delim)
	if err != nil || !nested {
		return token, err
	}
	p.deepest = max(p.deepest, depth)
	list, members := []any{}, object{}
	for p.decoder.More() {
		name := ""
		if delim == '{' {
			token, err := p.decoder.Token()
			if err != nil {
				return nil, err
			}
			name, _ = token.(string)
		}
		value, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		if delim == '{' {
			members = append(members, member{name, value})
		} else {
			list = append(list, value)
		}
	}
	if _, err := p.decoder.Token(); err != nil {
		return nil, err
	}
	if delim == '{' {
		return members, nil
	}
	return list, nil
}

// hasLoneSurrogate finds escapes that the standard decoder would replace. The text is valid JSON.
func hasLoneSurrogate(text []byte) bool {
	for {
		at := bytes.IndexByte(text, '\\')
		if at < 0 {
			return false
		}
		text = text[at:]
		unit := escapedUnit(text)
		switch {
		case unit < 0:
			text = text[2:]
		case unit < 0xd800 || unit > 0xdfff:
			text = text[6:]
		default:
			low := escapedUnit(text[6:])
			if unit > 0xdbff || low < 0xdc00 || low > 0xdfff {
				return true
			}
			text = text[12:]
		}
	}
}

// escapedUnit gives the UTF-16 unit of an escape \uXXXX at the beginning of the text, or -1.
func escapedUnit(text []byte) int64 {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(unit)
}
