package history

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
)

var (
	// ErrNotFound says that the namespace is not there and has no history.
	ErrNotFound = errors.New("no such namespace, and no history of one")
	// ErrRange says that the range is empty or not of whole hours.
	ErrRange = errors.New("not a range of whole hours")
)

// History is what is known of a namespace in a range.
type History struct {
	// Since and Until bound what history has, of any namespace, in UTC: hours before
	// Since are older than it or than the retention, and those from Until on are open.
	// Both are zero until the first roll-up.
	Since, Until time.Time
	// Hours are all closed hours of the range, in order and without gaps. Before its
	// creation and after its end a namespace has hours with nothing in them.
	Hours []Hour
}

// Read gives the closed hours of the namespace, those not before from and before to. Errors:
// ErrRange, ErrNotFound.
func Read(ctx context.Context, db DB, namespace uuid.UUID, from, to time.Time) (History, error) {
	from, to = from.UTC(), to.UTC()
	for _, t := range []time.Time{from, to} {
		if !t.Truncate(time.Hour).Equal(t) {
			return History{}, fmt.Errorf("%w: %s is within an hour of UTC", ErrRange, t.Format(time.RFC3339Nano))
		}
	}
	if !from.Before(to) {
		return History{}, fmt.Errorf("%w: %s is not before %s", ErrRange, from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	var h History
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		h, err = read(ctx, tx, namespace, from, to)
		return err
	})
	if err != nil {
		return History{}, fmt.Errorf("usage history: %w", err)
	}
	return h, nil
}

func read(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, from, to time.Time) (h History, err error) {
	if err := exists(ctx, tx, namespace); err != nil {
		return h, err
	}
	var begun bool
	if h.Since, h.Until, begun, err = readProgress(ctx, tx); err != nil || !begun {
		return h, err
	}
	if from.Before(h.Since) {
		from = h.Since
	}
	if to.After(h.Until) {
		to = h.Until
	}
	if !from.Before(to) {
		return h, nil
	}
	stored, err := storedHours(ctx, tx, namespace, from, to)
	if err != nil {
		return h, err
	}
	level, err := levelBefore(ctx, tx, namespace, from, h.Until)
	if err != nil {
		return h, err
	}
	h.Hours = fill(stored, level, from, to)
	return h, adjust(ctx, tx, namespace, h.Hours)
}

func exists(ctx context.Context, tx pgx.Tx, namespace uuid.UUID) error {
	var found bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM namespace_statistics WHERE namespace_id = $1)
		    OR EXISTS (SELECT FROM usage_hours WHERE namespace_id = $1)
		    OR EXISTS (SELECT FROM usage_closings WHERE namespace_id = $1)`, namespace).Scan(&found)
	if err == nil && !found {
		return ErrNotFound
	}
	return err
}

// storedHours are the hours of the range in which something changed.
func storedHours(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, from, to time.Time) (map[time.Time]Hour, error) {
	rows, err := tx.Query(ctx, `
		SELECT hour, bytes_end, components_end, byte_seconds::text, peak_bytes FROM usage_hours
		WHERE namespace_id = $1 AND hour >= $2 AND hour < $3`, namespace, from, to)
	if err != nil {
		return nil, err
	}
	stored := map[time.Time]Hour{}
	var h Hour
	var byteSeconds string
	_, err = pgx.ForEachRow(rows, []any{&h.Start, &h.End.Bytes, &h.End.Components, &byteSeconds, &h.PeakBytes}, func() error {
		var ok bool
		if h.ByteSeconds, ok = new(big.Rat).SetString(byteSeconds); !ok {
			return fmt.Errorf("hour %s: %q is no number", h.Start, byteSeconds)
		}
		h.Start = h.Start.UTC()
		stored[h.Start] = h
		return nil
	})
	return stored, err
}

// levelBefore is what the namespace had when the range began: what the last row
// before it ended with, or the first row began with. Without rows it has had the
// same since history began.
func levelBefore(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, from, until time.Time) (level accounting.Counters, err error) {
	args := pgx.NamedArgs{"namespace": namespace, "from": from, "until": until}
	for _, sql := range []string{
		`SELECT bytes_end, components_end FROM usage_hours WHERE namespace_id = @namespace AND hour < @from ORDER BY hour DESC LIMIT 1`,
		`SELECT bytes_start, components_start FROM usage_hours WHERE namespace_id = @namespace AND hour >= @from ORDER BY hour LIMIT 1`,
		`SELECT a.bytes::bigint, a.components::bigint FROM (SELECT @namespace::uuid AS namespace_id) t
		CROSS JOIN LATERAL (` + fmt.Sprintf(anchorSQL, `@until::timestamptz`) + `) a`,
	} {
		err = tx.QueryRow(ctx, sql, args).Scan(&level.Bytes, &level.Components)
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	if err != nil {
		return level, fmt.Errorf("level before %s: %w", from.Format(time.RFC3339), err)
	}
	return level, nil
}

// fill adds the hours in which nothing changed.
func fill(stored map[time.Time]Hour, level accounting.Counters, from, to time.Time) []Hour {
	hours := make([]Hour, 0, int(to.Sub(from).Hours()))
	for at := from; at.Before(to); at = at.Add(time.Hour) {
		h, changed := stored[at]
		if !changed {
			h = Hour{Start: at, End: level, PeakBytes: level.Bytes}
			h.ByteSeconds = new(big.Rat).Mul(new(big.Rat).SetInt64(level.Bytes), big.NewRat(3600, 1))
		}
		hours = append(hours, h)
		level = h.End
	}
	return hours
}

// adjust puts the adjustments into their hours.
func adjust(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, hours []Hour) error {
	first := hours[0].Start
	rows, err := tx.Query(ctx, `
		SELECT applied_at, kind, batch_id, bytes, components FROM usage_adjustments
		WHERE namespace_id = $1 AND applied_at >= $2 AND applied_at < $3
		ORDER BY applied_at, kind, batch_id`, namespace, first, hours[len(hours)-1].Start.Add(time.Hour))
	if err != nil {
		return err
	}
	var a Adjustment
	_, err = pgx.ForEachRow(rows, []any{&a.AppliedAt, &a.Kind, &a.BatchID, &a.Bytes, &a.Components}, func() error {
		a.AppliedAt = a.AppliedAt.UTC()
		h := &hours[int(a.AppliedAt.Sub(first)/time.Hour)]
		h.Adjustments = append(h.Adjustments, a)
		return nil
	})
	return err
}
