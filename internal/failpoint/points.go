package failpoint

import "slices"

// Point names a place between two steps of the protocol.
type Point string

// The writer: a counted transaction and what follows its COMMIT. The marker and
// the COMMIT are one round trip, so nothing of ours runs between the two.
const (
	// WriterWrote: the changes are written, the marker is not read.
	WriterWrote Point = "writer.wrote"
	// WriterCommitted: committed, and nobody knows it yet. An error here is a
	// lost answer.
	WriterCommitted Point = "writer.committed"
	// WriterEmits: one namespace's deltas are about to be emitted.
	WriterEmits Point = "writer.emits"
	// WriterEmitted: they are in the buffer. An error here is a lost answer.
	WriterEmitted Point = "writer.emitted"
	// RequestWaits: a request of the writer is about to be written.
	RequestWaits Point = "request.waits"
	// RequestWritten: it is committed. An error here is a lost answer.
	RequestWritten Point = "request.written"
)

// The tick.
const (
	// TickSampled: the sizes are read, no drain is inserted.
	TickSampled Point = "tick.sampled"
	// TickInserted: the drains are inserted, the identities not yet read.
	TickInserted Point = "tick.inserted"
	// TickRequested: every namespace of the lost buckets is requested, no
	// identity is repaired.
	TickRequested Point = "tick.requested"
	// TickRenewed: Redis has the new identities, Postgres does not.
	TickRenewed Point = "tick.renewed"
)

// The drain of a bucket.
const (
	// DrainClaims: a claim is about to be made.
	DrainClaims Point = "drain.claims"
	// DrainClaimed: the flushes are frozen. An error here is a lost answer.
	DrainClaimed Point = "drain.claimed"
	// DrainLocked: the rows are locked, the ledger is not written.
	DrainLocked Point = "drain.locked"
	// DrainEntered: ledger and rows are written, not committed.
	DrainEntered Point = "drain.entered"
	// DrainCommitted: they are committed. An error here is a lost answer.
	DrainCommitted Point = "drain.committed"
	// DrainFinishes: what is settled is about to leave Redis.
	DrainFinishes Point = "drain.finishes"
	// DrainFinished: it has left. An error here is a lost answer.
	DrainFinished Point = "drain.finished"
)

// The reconciliation of a namespace.
const (
	// PassSlot: the slot is taken, nothing else is done.
	PassSlot Point = "pass.slot"
	// PassAdvanced: the marker is advanced, the writers are not locked out.
	PassAdvanced Point = "pass.advanced"
	// PassLocked: the writers are locked out, the snapshot is not taken.
	PassLocked Point = "pass.locked"
	// PassSnapshot: the snapshot is taken, the marker not committed.
	PassSnapshot Point = "pass.snapshot"
	// PassMarked: the marker is committed, the scan has not begun.
	PassMarked Point = "pass.marked"
	// PassScans: one repository is recounted.
	PassScans Point = "pass.scans"
	// PassScanned: everything is recounted, the namespace is not written.
	PassScanned Point = "pass.scanned"
	// PassWrites: a chunk is about to be written back.
	PassWrites Point = "pass.writes"
	// PassRowsLocked: a chunk's rows are locked and not written.
	PassRowsLocked Point = "pass.rows_locked"
	// PassRowsWritten: a chunk's rows are written, not committed.
	PassRowsWritten Point = "pass.rows_written"
	// PassChunk: a chunk of repositories is committed. An error here is a lost
	// answer.
	PassChunk Point = "pass.chunk"
	// PassClosed: the namespace is stamped and its request deleted, neither is
	// committed.
	PassClosed Point = "pass.closed"
	// PassStamped: both are committed. An error here is a lost answer.
	PassStamped Point = "pass.stamped"
)

// The history. It only reads what the protocol has made.
const (
	// HistoryWritten: a step is written, not committed.
	HistoryWritten Point = "history.written"
	// HistoryCommitted: it is committed. An error here is a lost answer.
	HistoryCommitted Point = "history.committed"
)

// Points are all of the protocol, actor by actor, in the order in which they are met.
func Points() []Point {
	return slices.Concat(WriterPoints(), TickPoints(), DrainPoints(), PassPoints())
}

// WriterPoints are those of a writer.
func WriterPoints() []Point {
	return []Point{WriterWrote, WriterCommitted, WriterEmits, WriterEmitted, RequestWaits, RequestWritten}
}

// TickPoints are those of a tick.
func TickPoints() []Point {
	return []Point{TickSampled, TickInserted, TickRequested, TickRenewed}
}

// DrainPoints are those of a drain.
func DrainPoints() []Point {
	return []Point{DrainClaims, DrainClaimed, DrainLocked, DrainEntered, DrainCommitted, DrainFinishes, DrainFinished}
}

// PassPoints are those of a reconciliation.
func PassPoints() []Point {
	return []Point{
		PassSlot, PassAdvanced, PassLocked, PassSnapshot, PassMarked, PassScans, PassWrites, PassRowsLocked,
		PassRowsWritten, PassChunk, PassScanned, PassClosed, PassStamped,
	}
}

// HistoryPoints are those of the history.
func HistoryPoints() []Point { return []Point{HistoryWritten, HistoryCommitted} }
