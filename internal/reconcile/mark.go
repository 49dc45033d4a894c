package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/requests"
)

const (
	// markLockTimeout is the worst stall of a writer: while the mark waits for
	// the writers before it, those after it wait for the mark.
	markLockTimeout = 300 * time.Millisecond
	// markIdleTimeout makes the server end a mark whose process was stopped
	// while it held the writers up.
	markIdleTimeout = 2 * time.Second
)

var (
	// errGone says that the namespace does not exist any more.
	errGone = errors.New("namespace is gone")
	// errBusy says that other transactions held the namespace's locks too long.
	errBusy = errors.New("namespace is busy")
)

const createStatisticsSQL = `
INSERT INTO namespace_statistics (namespace_id)
SELECT id FROM namespaces WHERE id = $1
ON CONFLICT (namespace_id) DO NOTHING`

// The marker must exceed the namespace's old one, so that a delta with the old
// one is told from one with the new one; every last_reconciled_at of the
// namespace, or the write-back would be fenced by rows that outlived a lost
// statistics row; and the request that this pass answers, or it would leave open
// one whose marker is of a clock that was ahead.
const advanceMarkerSQL = `
UPDATE namespace_statistics
SET reconciliation_marker = greatest(
    clock_timestamp(),
    reconciliation_marker + interval '1 microsecond',
    last_reconciled_at + interval '1 microsecond',
    (SELECT max(last_reconciled_at) + interval '1 microsecond' FROM repositories WHERE namespace_id = $1),
    (SELECT marker + interval '1 microsecond' FROM reconciliation_requests WHERE namespace_id = $1))
WHERE namespace_id = $1
RETURNING stowage_marker_micros(reconciliation_marker)`

// mark advances the namespace's marker and gives the scan transaction, which
// must have no snapshot yet, the snapshot that belongs to it: it holds every
// delta with a smaller marker and none with this one. It returns errGone when
// there is no such namespace, after dropping its request, or errBusy.
//
// The marker is advanced before the lock is taken: the row may be locked by a
// drain, and writers must not wait for drains.
func mark(ctx context.Context, db pgdb.Beginner, scan pgx.Tx, namespace uuid.UUID, lockTimeout time.Duration) (accounting.Marker, error) {
	var marker accounting.Marker
	gone := false
	err := pgdb.InTx(ctx, db, func(tx pgx.Tx) (err error) {
		if err := setMarkTimeouts(ctx, tx, lockTimeout); err != nil {
			return err
		}
		marker, err = advanceMarker(ctx, tx, namespace)
		if errors.Is(err, errGone) {
			gone = true
			return requests.Drop(ctx, tx, namespace)
		}
		if err != nil {
			return err
		}
		return markAlone(ctx, tx, scan, namespace)
	})
	switch {
	case pgdb.IsLockTimeout(err):
		return 0, fmt.Errorf("mark: %w: %w", errBusy, err)
	case pgdb.IsForeignKeyViolation(err):
		// Deleted while its row was made. A pass of its request will drop that.
		return 0, errGone
	case err != nil:
		return 0, fmt.Errorf("mark: %w", err)
	case gone:
		return 0, errGone
	default:
		return marker, nil
	}
}

// markAlone locks the writers out and takes the snapshot.
func markAlone(ctx context.Context, tx, scan pgx.Tx, namespace uuid.UUID) error {
	if err := failpoint.Hit(ctx, failpoint.PassAdvanced); err != nil {
		return err
	}
	if err := lockWritersOut(ctx, tx, namespace); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, failpoint.PassLocked); err != nil {
		return err
	}
	if err := takeSnapshot(ctx, scan); err != nil {
		return err
	}
	return failpoint.Hit(ctx, failpoint.PassSnapshot)
}

func setMarkTimeouts(ctx context.Context, tx pgx.Tx, lockTimeout time.Duration) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d; SET LOCAL idle_in_transaction_session_timeout = %d`,
		lockTimeout.Milliseconds(), markIdleTimeout.Milliseconds()))
	return err
}

func advanceMarker(ctx context.Context, tx pgx.Tx, namespace uuid.UUID) (accounting.Marker, error) {
	if _, err := tx.Exec(ctx, createStatisticsSQL, namespace); err != nil {
		return 0, fmt.Errorf("create statistics row: %w", err)
	}
	var micros int64
	err := tx.QueryRow(ctx, advanceMarkerSQL, namespace).Scan(&micros)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errGone
	}
	if err != nil {
		return 0, fmt.Errorf("advance marker: %w", err)
	}
	return accounting.Marker(micros), nil
}

// lockWritersOut waits for the writers that saw the old marker. It is in force
// until the marker is committed, so that those after it see the new one [R1].
func lockWritersOut(ctx context.Context, tx pgx.Tx, namespace uuid.UUID) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(stowage_namespace_lock_key($1))`, namespace); err != nil {
		return fmt.Errorf("lock writers out: %w", err)
	}
	return nil
}

// takeSnapshot fixes the snapshot of the scan while no writer can commit [R5].
func takeSnapshot(ctx context.Context, scan pgx.Tx) error {
	if _, err := scan.Exec(ctx, `SELECT pg_current_snapshot()`); err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	return nil
}
