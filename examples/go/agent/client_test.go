package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"neli"
)

// serve gives a client of a server at a Unix socket. The server answers each path with a handler.
func serve(t *testing.T, handlers map[string]http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, handler := range handlers {
		mux.HandleFunc(pattern, handler)
	}
	server := httptest.NewUnstartedServer(mux)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return New(socket)
}

func TestOwner(t *testing.T) {
	client := serve(t, map[string]http.HandlerFunc{"GET /v1/owner": func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RawQuery {
		case "key=a%26b":
			io.WriteString(w, `{"partition":3,"name":"n","address":"h:1","term":7,"slot":19,"at":5,"age":0.5,"newer":1}`)
		case "key64=_wA%3D":
			io.WriteString(w, `{"partition":4,"name":null,"why":"nobody joined"}`)
		default:
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"kind":"NoSuchPartition","wanted":"a partition","found":"900","remedy":"ask for less"}`)
		}
	}})
	owner, err := client.Owner(t.Context(), Key("a&b"))
	if err != nil || owner.Name != "n" || owner.Term != 7 || *owner.Slot != 19 || owner.Age != 0.5 {
		t.Errorf("got %+v, %v", owner, err)
	}
	owner, err = client.Owner(t.Context(), Key("\xff\x00"))
	if err != nil || owner.Name != "" || owner.Slot != nil || owner.Why != "nobody joined" {
		t.Errorf("got %+v, %v", owner, err)
	}
	var refusal *Refusal
	_, err = client.Owner(t.Context(), Partition(900))
	if !errors.As(err, &refusal) || refusal.Status != 400 || refusal.Kind != "NoSuchPartition" {
		t.Errorf("got %v", err)
	}
	if _, err = client.Table(t.Context()); !errors.As(err, &refusal) || refusal.Status != 404 {
		t.Errorf("got %v", err)
	}
}

func TestOwners(t *testing.T) {
	client := serve(t, map[string]http.HandlerFunc{"POST /v1/owners": func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Keys, Keys64 []string }
		json.NewDecoder(r.Body).Decode(&asked)
		if len(asked.Keys) == 2 && fmt.Sprint(asked) != "{[a b] [_w==]}" {
			t.Errorf("asked for %v", asked)
		}
		io.WriteString(w, `{"owners":[{"partition":1,"name":"x"},{"partition":2,"name":"y"},{"partition":3,"name":"z"}],"at":1,"age":0}`)
	}})
	owners, err := client.Owners(t.Context(), "a", "\xff", "b")
	if err != nil || len(owners) != 3 || owners[0].Name != "x" || owners[1].Name != "z" || owners[2].Name != "y" {
		t.Errorf("got %+v, %v", owners, err)
	}
	if _, err := client.Owners(t.Context(), "a", "\xff", "b", "c"); err == nil {
		t.Error("three owners of four keys")
	}
}

func TestTable(t *testing.T) {
	client := serve(t, map[string]http.HandlerFunc{"GET /v1/table": func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"address":"kafka://x","slots":16,"tags":true,"at":9,"age":0.1,"partitions":[
			{"owner":0,"term":3,"target":null,"pinned":"a","load":2.5},{"owner":null,"term":0,"target":1}]}`)
	}})
	table, err := client.Table(t.Context())
	if err != nil || *table.Partitions[0].Owner != 0 || table.Partitions[0].Target != nil || *table.Partitions[0].Pinned != "a" {
		t.Errorf("got %+v, %v", table, err)
	}
	if layout, known := table.Layout(); !known || layout != (neli.Layout{Slots: 16, Partitions: 2, Tags: true}) {
		t.Errorf("got %+v, %v", layout, known)
	}
}

func TestLeadership(t *testing.T) {
	client := serve(t, map[string]http.HandlerFunc{
		"GET /v1/leadership": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("timeout") != "1.5" {
				t.Errorf("asked %v", r.URL)
			}
			time.Sleep(50 * time.Millisecond)
			fmt.Fprintf(w, `{"partition":1,"leads":%t,"member":"m","term":4}`, r.URL.Query().Get("key") == "mine")
		},
		"GET /v1/lease": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, `{"partition":1,"leads":true,"member":"m","term":4,"remaining":2.0,"drain_timeout":30.0}`)
		},
	})
	before := time.Now()
	lease, err := client.Leadership(t.Context(), Key("mine"), 1500*time.Millisecond)
	left := lease.Until.Sub(before)
	if err != nil || !lease.Leads || left < 2050*time.Millisecond || lease.Until.After(time.Now().Add(2*time.Second)) {
		t.Errorf("got %+v, %v; %v left", lease, err, left)
	}
	if lease, err = client.Leadership(t.Context(), Key("theirs"), 1500*time.Millisecond); err != nil || lease.Leads {
		t.Errorf("got %+v, %v", lease, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := client.Leadership(ctx, Key("mine"), 1500*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestWatch(t *testing.T) {
	closed := make(chan bool, 2)
	client := serve(t, map[string]http.HandlerFunc{"GET /v1/watch": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ": hello\n\nevent: newer\ndata: {}\n\nevent: owner\ndata: {\"partition\":1,\ndata: \"name\":\"a\"}\n\n")
		io.WriteString(w, "event:owner\r\ndata:{\"partition\":2,\"name\":null}\r\n\r\n")
		w.(http.Flusher).Flush()
		if r.URL.RawQuery == "partition=1" {
			<-r.Context().Done()
		}
		closed <- true
	}})
	for owner, err := range client.Watch(t.Context(), Partition(1)) {
		if err != nil || owner.Partition == 1 && owner.Name != "a" {
			t.Errorf("got %+v, %v", owner, err)
		}
		if owner.Partition == 2 {
			break
		}
	}
	<-closed // The loop closed the stream.
	var last error
	number := 0
	for _, err := range client.Watch(t.Context(), Target{}) {
		last, number = err, number+1
	}
	if number != 3 || !errors.Is(last, io.ErrUnexpectedEOF) {
		t.Errorf("%d events, then %v", number, last)
	}
}
