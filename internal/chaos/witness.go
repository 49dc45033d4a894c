package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
)

// tally is what became of the operations of one name.
type tally struct {
	outcomes map[outcome]int
	// longest is the longest that one took, and at when, since the storm began,
	// it ended.
	longest, at time.Duration
}

// witness adds up what all writers tell.
type witness struct {
	began time.Time

	mu         sync.Mutex
	operations map[string]*tally
	// wrong are results and errors that must not be.
	wrong []string
	// doubts are when a writer was killed last whose delta of the namespace may
	// be neither in Redis nor requested: nothing in the system can notice that.
	doubts map[uuid.UUID]time.Time
	// unsent are when a writer said last that a delta of the namespace did not
	// certainly reach Redis.
	unsent map[uuid.UUID]time.Time
	// inside is how many writers were killed inside an operation.
	inside int
}

func newWitness() *witness {
	return &witness{
		began: time.Now(), operations: make(map[string]*tally),
		doubts: make(map[uuid.UUID]time.Time), unsent: make(map[uuid.UUID]time.Time),
	}
}

// testimony is what one writer's process has told.
type testimony struct {
	witness *witness
	// inFlight is the operation under way, nil between two.
	inFlight *event
	// unsent are namespaces whose request may wait in the writer's memory.
	unsent map[uuid.UUID]bool
	// begun says that it did anything, and closed that it ended in order.
	begun, closed bool
	done          chan struct{}
}

// hear reads a writer's events until it has ended, in a goroutine that Done
// closes behind.
func (w *witness) hear(from io.ReadCloser) *testimony {
	t := &testimony{witness: w, unsent: make(map[uuid.UUID]bool), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer from.Close()
		lines := bufio.NewScanner(from)
		for lines.Scan() {
			t.take(lines.Bytes())
		}
		if err := lines.Err(); err != nil {
			w.complain("a writer's events cannot be read: %v", err)
		}
	}()
	return t
}

func (t *testimony) take(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		t.witness.complain("a writer wrote %q: %v", line, err)
		return
	}
	switch e.Kind {
	case eventBegin:
		t.inFlight, t.begun = &e, true
	case eventEnd:
		t.witness.count(t.inFlight.Operation, e)
		t.inFlight = nil
	case eventUnsent:
		t.unsent[e.Namespaces[0]] = true
		t.witness.notSent(e.Namespaces[0])
	case eventRequested:
		clear(t.unsent)
	case eventClosed:
		t.closed = true
	}
}

func (w *witness) notSent(namespace uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsent[namespace] = time.Now()
}

func (w *witness) count(operation string, end event) {
	w.mu.Lock()
	t := w.operations[operation]
	if t == nil {
		t = &tally{outcomes: make(map[outcome]int)}
		w.operations[operation] = t
	}
	t.outcomes[end.Outcome]++
	if took := time.Duration(end.Micros) * time.Microsecond; took > t.longest {
		t.longest, t.at = took, time.Since(w.began)
	}
	w.mu.Unlock()
	if end.Outcome == outcomeWrong || end.Outcome == outcomeDeadlock {
		w.complain("%s: %s", operation, end.Text)
	}
}

func (w *witness) complain(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// killed notes, when the writer is gone and all that it told was heard, what
// may be missing because of that.
func (w *witness) killed(t *testimony) {
	<-t.done
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for namespace := range t.unsent {
		w.doubts[namespace] = now
	}
	if t.inFlight == nil {
		return
	}
	w.inside++
	for _, namespace := range t.inFlight.Namespaces {
		w.doubts[namespace] = now
	}
}

// ended checks that a writer that was told to end did so in order. One that was
// just starting may not have known yet that it can be told.
func (w *witness) ended(t *testimony) {
	<-t.done
	if t.begun && !t.closed {
		w.complain("a writer that was told to end did not say that it wrote its last requests")
		w.killed(t)
	}
}
