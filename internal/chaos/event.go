package chaos

import "github.com/google/uuid"

// event is a line of JSON that a writer writes at once, so that whatever it
// did not get to write before it was killed did not happen.
type event struct {
	Kind string `json:"kind"`
	// Operation and Namespaces, which it may change, of eventBegin.
	Operation string `json:"operation,omitempty"`
	// Namespaces of eventUnsent are those for which a request waits in memory.
	Namespaces []uuid.UUID `json:"namespaces,omitempty"`
	// Micros and Outcome of eventEnd; Text is the error, if there is one.
	Micros  int64   `json:"micros,omitempty"`
	Outcome outcome `json:"outcome,omitempty"`
	Text    string  `json:"text,omitempty"`
}

const (
	eventBegin = "begin"
	eventEnd   = "end"
	// eventUnsent says that a delta did not certainly reach Redis, and
	// eventRequested that all requests made for that are in PostgreSQL.
	eventUnsent    = "unsent"
	eventRequested = "requested"
	// eventClosed is the last one of a writer that ended in order.
	eventClosed = "closed"
)

// outcome is how an operation ended.
type outcome string

const (
	outcomeDone outcome = "done"
	// outcomeRefused is a rule's answer: not there, or there with other content.
	outcomeRefused outcome = "refused"
	// outcomeBroken is a server or a connection that went away.
	outcomeBroken outcome = "broken off"
	// outcomeUnknown is a COMMIT without an answer.
	outcomeUnknown outcome = "unknown"
	// outcomeDeadlock and outcomeWrong must not happen.
	outcomeDeadlock outcome = "deadlock"
	outcomeWrong    outcome = "wrong"
)
