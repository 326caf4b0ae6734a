// The agent `nats-go`: answers by Respond of nats.go, which copies no headers. agents.py documents the requests.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

const agent = "nats-go"

type object = map[string]any

type options struct {
	Behave string `json:"behave"`
	Nonce  any    `json:"nonce"`
}

type request struct {
	ID     json.RawMessage `json:"id"`
	Params struct {
		Arguments *options `json:"arguments"`
		Metadata  *options `json:"metadata"`
	} `json:"params"`
}

// answers returns the results of the request as JSON-RPC responses, in order.
func answers(body []byte) (string, []object) {
	var parsed request
	if err := json.Unmarshal(body, &parsed); err != nil {
		log.Fatalf("not a request: %v", err)
	}
	opts := parsed.Params.Arguments
	if opts == nil {
		opts = parsed.Params.Metadata
	}
	if opts == nil { // a cancel
		return "", nil
	}
	result := func(result object) object { return object{"jsonrpc": "2.0", "id": parsed.ID, "result": result} }
	weather := func() object { return object{"celsius": -3, "nonce": opts.Nonce} }
	switch opts.Behave {
	case "unary", "hold":
		return opts.Behave, []object{result(weather())}
	case "stream":
		return opts.Behave, stream(opts.Nonce, result)
	case "error":
		failed := object{"code": -32050, "message": "no such city"}
		return opts.Behave, []object{{"jsonrpc": "2.0", "id": parsed.ID, "error": failed}}
	case "twice":
		first, second := weather(), weather()
		first["answer"], second["answer"] = 1, 2
		return opts.Behave, []object{result(first), result(second)}
	}
	return opts.Behave, nil
}

// stream returns four artifact updates and the last status update of A2A 0.3.
func stream(nonce any, result func(object) object) []object {
	var parts []object
	for part := 1; part < 5; part++ {
		data := object{"kind": "data", "data": object{"part": part, "nonce": nonce}}
		parts = append(parts, result(object{"kind": "artifact-update", "taskId": "t-1", "contextId": "c-1",
			"artifact": object{"artifactId": "a-1", "parts": []object{data}}}))
	}
	return append(parts, result(object{"kind": "status-update", "taskId": "t-1", "contextId": "c-1",
		"status": object{"state": "completed"}, "final": true, "metadata": object{"part": 5, "nonce": nonce}}))
}

func respond(message *nats.Msg, all []object) {
	for _, one := range all {
		body, err := json.Marshal(one)
		if err == nil {
			err = message.Respond(body)
		}
		if err != nil {
			log.Printf("not answered: %v", err)
		}
	}
}

// held are requests whose answers wait for the control subject.
type held struct {
	sync.Mutex
	waiting []*nats.Msg
	open    bool
}

func (h *held) keep(message *nats.Msg) bool {
	h.Lock()
	defer h.Unlock()
	if !h.open {
		h.waiting = append(h.waiting, message)
	}
	return !h.open
}

func (h *held) take(count int) []*nats.Msg {
	h.Lock()
	defer h.Unlock()
	count = min(count, len(h.waiting))
	taken := h.waiting[:count]
	h.waiting = h.waiting[count:]
	return taken
}

func (h *held) setOpen(open bool) {
	h.Lock()
	defer h.Unlock()
	h.open, h.waiting = open, nil
}

func (h *held) control(message *nats.Msg, quit chan<- struct{}) {
	word, rest, _ := strings.Cut(string(message.Data), " ")
	switch word {
	case "release":
		var count int
		if _, err := fmt.Sscan(rest, &count); err != nil {
			log.Fatalf("release what? %v", err)
		}
		for _, request := range h.take(count) {
			_, all := answers(request.Data)
			respond(request, all)
		}
	case "open", "close":
		h.setOpen(word == "open")
	case "quit":
		close(quit)
	}
	h.Lock()
	count := len(h.waiting)
	h.Unlock()
	if err := message.Respond(fmt.Appendf(nil, "[%d]", count)); err != nil {
		log.Printf("control: %v", err)
	}
}

func main() {
	run := os.Getenv("CLIENTS_RUN")
	connection, err := nats.Connect(os.Getenv("A2ABUS_TEST_NATS"))
	if err != nil {
		log.Fatal(err)
	}
	var waiting held
	quit := make(chan struct{})
	_, err = connection.Subscribe(run+".agents."+agent, func(message *nats.Msg) {
		behave, all := answers(message.Data)
		if behave == "hold" && waiting.keep(message) {
			return
		}
		respond(message, all)
	})
	if err == nil {
		_, err = connection.Subscribe(run+".control", func(message *nats.Msg) { waiting.control(message, quit) })
	}
	if err == nil {
		err = connection.Flush()
	}
	if err != nil {
		log.Fatal(err)
	}
	<-quit
	if err := connection.Flush(); err != nil {
		log.Fatal(err)
	}
}
