// Package agent asks an agent for owners and leases, over the Unix socket of the agent.
package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"neli"
)

// A Target names a partition. The zero Target names none.
type Target struct{ name, value string }

// Key names the partition of a key. The key is text in UTF-8, or any bytes.
func Key(key string) Target {
	if utf8.ValidString(key) {
		return Target{"key", key}
	}
	return Target{"key64", base64.URLEncoding.EncodeToString([]byte(key))}
}

// Partition names a partition by its number.
func Partition(number int64) Target {
	return Target{"partition", strconv.FormatInt(number, 10)}
}

func (t Target) query() url.Values {
	if t.name == "" {
		return url.Values{}
	}
	return url.Values{t.name: {t.value}}
}

// An Owner says who owns a partition. Without an owner, Name is empty and Why gives the reason.
type Owner struct {
	Partition int64   `json:"partition"`
	Name      string  `json:"name"`
	Address   string  `json:"address"`
	Term      int64   `json:"term"`
	Slot      *int64  `json:"slot"` // nil if the question was about a partition
	At        int64   `json:"at"`
	Age       float64 `json:"age"` // in seconds
	Why       string  `json:"why"`
	Believed  bool    `json:"believed"`
	Peer      string  `json:"peer"`
}

// A Lease says whether the member of the agent leads a partition.
type Lease struct {
	Partition    int64   `json:"partition"`
	Leads        bool    `json:"leads"`
	Member       string  `json:"member"`
	Term         int64   `json:"term"`
	Remaining    float64 `json:"remaining"`     // in seconds, as the agent said it
	DrainTimeout float64 `json:"drain_timeout"` // in seconds
	Why          string  `json:"why"`
	// Until is when the lease ends. It counts the remaining time from before the question.
	Until time.Time `json:"-"`
}

// A TablePartition is a row of a Table. Owner, Target and Standby are places in the list of members, or nil.
type TablePartition struct {
	Owner   *int    `json:"owner"`
	Term    int64   `json:"term"`
	Target  *int    `json:"target"`
	Pinned  *string `json:"pinned"`
	Load    float64 `json:"load"`
	Standby *int    `json:"standby"`
}

// A Table has all partitions of the group.
type Table struct {
	Address    string           `json:"address"`
	Slots      int64            `json:"slots"`
	Partitions []TablePartition `json:"partitions"`
	At         int64            `json:"at"`
	Age        float64          `json:"age"` // in seconds
	Tags       bool             `json:"tags"`
	Why        []string         `json:"why"`
}

// Layout says how keys fall into partitions. It returns false while the agent does not know the group.
func (t Table) Layout() (neli.Layout, bool) {
	return neli.Layout{Slots: t.Slots, Partitions: int64(len(t.Partitions)), Tags: t.Tags}, t.Slots > 0
}

// A Refusal is an answer of the agent that is an error.
type Refusal struct {
	Status int    `json:"-"`
	Kind   string `json:"kind"`
	Wanted string `json:"wanted"`
	Found  string `json:"found"`
	Remedy string `json:"remedy"`
}

func (r *Refusal) Error() string {
	if r.Kind == "" {
		return fmt.Sprintf("the agent answered with status %d", r.Status)
	}
	return fmt.Sprintf("%s: wanted %s, found %s; %s", r.Kind, r.Wanted, r.Found, r.Remedy)
}

// maxAnswer is the greatest length of an answer, or of one event.
const maxAnswer = 64 << 20

// A Client asks one agent. Several goroutines may use it at once.
type Client struct{ http http.Client }

// New gives a client of the agent at a Unix socket.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	return &Client{http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Owner asks for the owner of a partition.
func (c *Client) Owner(ctx context.Context, target Target) (Owner, error) {
	return call[Owner](ctx, c, "/v1/owner", target.query(), nil)
}

// Owners asks for the owners of many keys. They come in the order of the keys.
func (c *Client) Owners(ctx context.Context, keys ...string) ([]Owner, error) {
	question := struct {
		Keys   []string `json:"keys"`
		Keys64 []string `json:"keys64"`
	}{[]string{}, []string{}}
	var places, places64 []int
	for i, key := range keys {
		if target := Key(key); target.name == "key" {
			question.Keys, places = append(question.Keys, key), append(places, i)
		} else {
			question.Keys64, places64 = append(question.Keys64, target.value), append(places64, i)
		}
	}
	answer, err := call[struct {
		Owners []Owner `json:"owners"`
	}](ctx, c, "/v1/owners", nil, question)
	if err != nil {
		return nil, err
	}
	if len(answer.Owners) != len(keys) {
		return nil, fmt.Errorf("the agent named %d owners for %d keys", len(answer.Owners), len(keys))
	}
	owners := make([]Owner, len(keys))
	for from, to := range append(places, places64...) {
		owners[to] = answer.Owners[from]
	}
	return owners, nil
}

// Table asks for all partitions.
func (c *Client) Table(ctx context.Context) (Table, error) {
	return call[Table](ctx, c, "/v1/table", nil, nil)
}

// Lease asks whether the member of the agent leads a partition now.
func (c *Client) Lease(ctx context.Context, target Target) (Lease, error) {
	asked := time.Now()
	lease, err := call[Lease](ctx, c, "/v1/lease", target.query(), nil)
	lease.Until = asked.Add(time.Duration(lease.Remaining * float64(time.Second)))
	return lease, err
}

// Leadership waits until the member of the agent leads a partition, but not longer than wait. Then it asks for the
// lease again: the remaining time must not count from before the wait.
func (c *Client) Leadership(ctx context.Context, target Target, wait time.Duration) (Lease, error) {
	query := target.query()
	query.Set("timeout", strconv.FormatFloat(wait.Seconds(), 'f', -1, 64))
	lease, err := call[Lease](ctx, c, "/v1/leadership", query, nil)
	if err != nil || !lease.Leads {
		return lease, err
	}
	return c.Lease(ctx, target)
}

// Watch gives the owners that change, until the context ends or the stream fails. The zero Target watches all
// partitions. Each loop opens a stream of its own.
func (c *Client) Watch(ctx context.Context, target Target) iter.Seq2[Owner, error] {
	return func(yield func(Owner, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		body, err := c.open(ctx, "/v1/watch", target.query(), nil)
		if err != nil {
			yield(Owner{}, err)
			return
		}
		defer body.Close()
		events := bufio.NewReader(body)
		for {
			name, data, err := nextEvent(events)
			var owner Owner
			if err == nil && name != "owner" {
				continue // A newer agent may send other events.
			}
			if err == nil {
				err = json.Unmarshal(data, &owner)
			}
			if !yield(owner, err) || err != nil {
				return
			}
		}
	}
}

// nextEvent reads one server-sent event: lines with its name and its data, then an empty line.
func nextEvent(in *bufio.Reader) (name string, data []byte, err error) {
	var lines [][]byte
	size := 0
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF // The agent never ends a stream of its own.
			}
			return "", nil, err
		}
		if size += len(line); size > maxAnswer {
			return "", nil, errors.New("the agent sent too long an event")
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" && lines != nil {
			return name, bytes.Join(lines, []byte("\n")), nil
		} else if line == "" {
			name = "" // An event without data is none.
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			name = value
		case "data":
			lines = append(lines, []byte(value))
		}
	}
}

// open sends a question and returns the body of a good answer. A question with a body is a POST.
func (c *Client) open(ctx context.Context, path string, query url.Values, question any) (io.ReadCloser, error) {
	method, text := http.MethodGet, []byte(nil)
	if question != nil {
		var err error
		if text, err = json.Marshal(question); err != nil {
			return nil, err
		}
		method = http.MethodPost
	}
	address := url.URL{Scheme: "http", Host: "agent", Path: path, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, method, address.String(), bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if question != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		refusal := &Refusal{}
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		if json.Unmarshal(text, refusal) != nil {
			refusal = &Refusal{} // The answer does not come from an agent.
		}
		refusal.Status = response.StatusCode
		return nil, refusal
	}
	return response.Body, nil
}

func call[T any](ctx context.Context, c *Client, path string, query url.Values, question any) (answer T, err error) {
	body, err := c.open(ctx, path, query, question)
	if err != nil {
		return answer, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	return answer, err
}
