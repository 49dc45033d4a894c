package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

// state is one scope: what its row holds, what the source tables give, and what
// the ledger says that was ever done to the row.
type state struct {
	scope                  accounting.Scope
	row, recounted, ledger accounting.Counters
	reconciled             time.Time
}

func (s state) drift() accounting.Counters { return s.row.Minus(s.recounted) }

func (s state) String() string {
	return fmt.Sprintf("%s %s of namespace %s, reconciled at %s: row %+v, recount %+v, ledger %+v",
		s.scope.Kind, s.scope.ID, s.scope.Namespace, s.reconciled.Format(time.TimeOnly), s.row, s.recounted, s.ledger)
}

// compare looks at every scope there is, in one snapshot. It needs no quiet for
// the ledger, but the buffers must be empty for the recount.
func (s *storm) compare(ctx context.Context) ([]state, error) {
	var states []state
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		byID, err := readRows(ctx, tx)
		if err != nil {
			return err
		}
		if err := recountAll(ctx, tx, byID); err != nil {
			return err
		}
		for _, one := range byID {
			states = append(states, *one)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	return states, nil
}

// rowsSQL gives each row of counters with the sum of all that the ledger says
// was added to it: applied deltas and corrections. Rows begin with zero.
const rowsSQL = `
WITH ledger AS (
	SELECT scope_id, sum(bytes)::bigint AS bytes, sum(components)::bigint AS components
	FROM storage_ledger WHERE outcome IN (1, 4) GROUP BY scope_id
), counters AS (
	SELECT 1::smallint AS kind, namespace_id AS id, namespace_id, deduplicated_size_bytes AS bytes, components_count AS components, last_reconciled_at
	FROM namespace_statistics
	UNION ALL
	SELECT 2, id, namespace_id, size_bytes, artifacts_count, last_reconciled_at FROM repositories
)
SELECT c.kind, c.id, c.namespace_id, c.bytes, c.components, coalesce(l.bytes, 0), coalesce(l.components, 0), c.last_reconciled_at
FROM counters c LEFT JOIN ledger l ON l.scope_id = c.id`

func readRows(ctx context.Context, tx pgx.Tx) (map[uuid.UUID]*state, error) {
	rows, err := tx.Query(ctx, rowsSQL)
	if err != nil {
		return nil, err
	}
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*state, error) {
		var s state
		err := row.Scan(&s.scope.Kind, &s.scope.ID, &s.scope.Namespace, &s.row.Bytes, &s.row.Components,
			&s.ledger.Bytes, &s.ledger.Components, &s.reconciled)
		return &s, err
	})
	if err != nil {
		return nil, err
	}
	byID := make(map[uuid.UUID]*state, len(states))
	for _, s := range states {
		byID[s.scope.ID] = s
	}
	return byID, nil
}

func recountAll(ctx context.Context, tx pgx.Tx, byID map[uuid.UUID]*state) error {
	rows, err := tx.Query(ctx, `SELECT id FROM namespaces`)
	if err != nil {
		return err
	}
	namespaces, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	set := func(id uuid.UUID, counters accounting.Counters) error {
		s := byID[id]
		if s == nil {
			return fmt.Errorf("scope %s has no row of counters", id)
		}
		s.recounted = counters
		return nil
	}
	for _, id := range namespaces {
		total, err := reconcile.Recount(ctx, tx, id, set)
		if err == nil {
			err = set(id, total)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errLeftover says that a key is in Redis that should not be there.
var errLeftover = errors.New("key left in Redis")

// leftover is an error unless Redis holds nothing but the buckets' identities.
func leftover(ctx context.Context, client rueidis.Client) error {
	scan := rueidis.NewScanner(func(cursor uint64) (rueidis.ScanEntry, error) {
		return client.Do(ctx, client.B().Scan().Cursor(cursor).Count(1000).Build()).AsScanEntry()
	})
	for key := range scan.Iter() {
		if !strings.HasSuffix(key, ":identity") {
			return fmt.Errorf("%w: %s", errLeftover, key)
		}
	}
	return scan.Err()
}
