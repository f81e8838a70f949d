package neli

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
)

// A Copy is a Source that reads the JSON lines of a copy of a ledger.
type Copy struct {
	// Digest is that of the last line: the digest of the state at the end. It is there when Next has returned io.EOF.
	Digest string

	in      *bufio.Reader
	sum     hash.Hash // of all bytes before the last line
	start   *State
	records int64
	ended   bool
}

// OpenCopy reads the first line of a copy.
func OpenCopy(in io.Reader) (*Copy, error) {
	c := &Copy{in: bufio.NewReaderSize(in, 1<<16), sum: sha256.New()}
	line, err := c.in.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("first line of a copy: %w", err)
	}
	c.sum.Write(line)
	var head struct {
		Copy     string          `json:"copy"`
		V        int64           `json:"v"`
		Start    int64           `json:"start"`
		Snapshot json.RawMessage `json:"snapshot"`
	}
	if err := json.Unmarshal(line, &head); err != nil || head.Copy != "neli ledger" || head.V != 1 {
		return nil, errors.New("this is not a copy of a ledger")
	}
	if head.Snapshot != nil && string(head.Snapshot) != "null" {
		c.start, err = restoreHead(head.Snapshot, head.Start)
	}
	return c, err
}

// restoreHead accepts a whole Snapshot, or only its image: then the copy begins where it was taken.
func restoreHead(text []byte, start int64) (*State, error) {
	if record, err := Decode(text); err == nil {
		if b, ok := record.Body.(*Snapshot); ok {
			return b.Restore()
		}
	}
	value, _, err := parse(text)
	if err != nil {
		return nil, err
	}
	b := &Snapshot{Upto: start}
	if !b.State.set(2)(value) {
		return nil, errors.New("the snapshot of the copy cannot be decoded")
	}
	return b.Restore()
}

// Start is that of Source.
func (c *Copy) Start() *State { return c.start }

// Next gives the next line. At the end, it checks the number of the records and the hash of the copy.
func (c *Copy) Next() (Line, error) {
	if c.ended {
		return Line{}, io.EOF
	}
	text, err := c.in.ReadBytes('\n')
	if err != nil && (err != io.EOF || len(text) == 0) {
		return Line{}, fmt.Errorf("the copy has no last line: %w", errors.Join(io.ErrUnexpectedEOF, err))
	}
	var line struct {
		Offset  *int64          `json:"offset"`
		Record  json.RawMessage `json:"record"`
		Base64  []byte          `json:"base64"`
		End     *int64          `json:"end"`
		Records int64           `json:"records"`
		Digest  string          `json:"digest"`
		SHA256  string          `json:"sha256"`
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return Line{}, fmt.Errorf("line %d of the copy: %w", c.records+2, err)
	}
	switch {
	case line.End != nil:
		c.ended, c.Digest = true, line.Digest
		if line.Records != c.records {
			return Line{}, fmt.Errorf("the copy has %d records instead of %d", c.records, line.Records)
		}
		if found := hex.EncodeToString(c.sum.Sum(nil)); found != line.SHA256 {
			return Line{}, fmt.Errorf("the SHA-256 of the copy is %s instead of %s", found, line.SHA256)
		}
		return Line{}, io.EOF
	case line.Offset == nil:
		return Line{}, fmt.Errorf("line %d of the copy has no offset", c.records+2)
	}
	c.sum.Write(text)
	c.records++
	if line.Record != nil {
		return Line{*line.Offset, line.Record}, nil
	}
	return Line{*line.Offset, line.Base64}, nil
}
