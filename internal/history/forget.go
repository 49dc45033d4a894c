package history

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// forgetSQL deletes what nobody can ask for any more once history no longer has the
// hour: of each namespace that has a row in it, the rows before, and the row itself
// if it says that nothing was left. The last row before the retention stays, because
// it says what the hours after it began with.
const forgetSQL = `
DELETE FROM usage_hours u USING usage_hours gone
WHERE gone.hour = $1 AND u.namespace_id = gone.namespace_id
  AND (u.hour < gone.hour OR (u.hour = gone.hour AND gone.bytes_end = 0 AND gone.components_end = 0))`

// forget moves the beginning of history by an hour, if that is older than the
// retention.
func (r *run) forget(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	p := r.progress
	if r.cfg.Retention == 0 || !p.since.Before(p.hour.Add(-r.cfg.Retention)) {
		return false, nil
	}
	next := p.since.Add(time.Hour)
	if _, err := tx.Exec(ctx, forgetSQL, p.since); err != nil {
		return false, fmt.Errorf("forget hour %s: %w", p.since.Format(time.RFC3339), err)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM usage_adjustments WHERE applied_at < $1`, next); err != nil {
		return false, fmt.Errorf("forget adjustments before %s: %w", next.Format(time.RFC3339), err)
	}
	_, err = tx.Exec(ctx, `UPDATE usage_progress SET since = $1`, next)
	return true, err
}
