package main

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

const (
	// tasksAtOnce is what asynq was quickest with, of 16, 32 and 64.
	tasksAtOnce = 32
	enqueuers   = 8
	// lookInterval is that of our worker too, when there is nothing to do.
	lookInterval = 5 * time.Millisecond
	taskScopes   = 5000
	taskType     = "drain"
)

// takePending reads and deletes what is pending of a scope, in one step.
var takePending = rueidis.NewLuaScript(`
local sum = redis.call('HMGET', KEYS[1], 'bytes', 'components')
redis.call('DEL', KEYS[1])
return sum`)

// tasks drains scopes by a task for each.
type tasks struct {
	*drained
	pool   *pgxpool.Pool
	client *asynq.Client
	option asynq.RedisClientOpt
	// scopes are a part of the drain's: the figure is a rate.
	scopes []accounting.Scope
}

func prepareTasks(ctx context.Context, l *lab, d *drained) (*tasks, error) {
	pool, err := l.pool(ctx, d.pool.Config().ConnString(), tasksAtOnce)
	if err != nil {
		return nil, err
	}
	q := &tasks{
		drained: d, pool: pool, scopes: d.scopes[:min(len(d.scopes), l.size(taskScopes))],
		option: asynq.RedisClientOpt{Addr: l.server.Reach().InitAddress[0], PoolSize: 2 * tasksAtOnce},
	}
	q.client = asynq.NewClient(q.option)
	l.onClose(q.client.Close)
	return q, nil
}

// round is timed from the tick, which makes a task for each scope, until the last is
// done. Fair: that scopes are dirty is known for free, tasks are made and worked at the
// same time, many at once, so that their commits share an fsync; the one statement is
// the whole transaction; and what a crash between two steps would lose is not thought of.
func (q *tasks) round(ctx context.Context) (float64, error) {
	if err := q.vacuum(ctx); err != nil {
		return 0, err
	}
	before, err := q.sum(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := perSecond(ctx, tasksAtOnce, len(q.scopes), q.emitOne); err != nil {
		return 0, err
	}
	ended := make(chan error, len(q.scopes))
	server := asynq.NewServer(q.option, asynq.Config{
		Concurrency: tasksAtOnce, TaskCheckInterval: lookInterval, LogLevel: asynq.FatalLevel,
		BaseContext: func() context.Context { return ctx },
	})
	defer server.Shutdown()
	began := time.Now()
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := q.work(ctx, task)
		ended <- err
		return err
	})); err != nil {
		return 0, err
	}
	if _, err := perSecond(ctx, enqueuers, len(q.scopes), q.enqueue); err != nil {
		return 0, err
	}
	if err := await(ctx, ended, len(q.scopes)); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return float64(len(q.scopes)) / took.Seconds(), q.check(ctx, before, len(q.scopes))
}

func pendingKey(s accounting.Scope) string { return "pending:" + s.ID.String() }

// emitOne leaves something to drain.
func (q *tasks) emitOne(ctx context.Context, i int) error {
	return q.redis.Do(ctx, q.redis.B().Hset().Key(pendingKey(q.scopes[i])).FieldValue().
		FieldValue("bytes", strconv.FormatInt(delta.Bytes, 10)).FieldValue("components", strconv.FormatInt(delta.Components, 10)).Build()).Error()
}

func (q *tasks) enqueue(ctx context.Context, i int) error {
	payload, err := json.Marshal(q.scopes[i])
	if err != nil {
		return err
	}
	_, err = q.client.EnqueueContext(ctx, asynq.NewTask(taskType, payload), asynq.MaxRetry(0))
	return err
}

// work is a task: the lease, what is pending, the row, and the lease is given back.
func (q *tasks) work(ctx context.Context, task *asynq.Task) error {
	var s accounting.Scope
	if err := json.Unmarshal(task.Payload(), &s); err != nil {
		return err
	}
	b, lease := q.redis.B(), "lease:"+s.ID.String()
	if err := q.redis.Do(ctx, b.Set().Key(lease).Value("bench").Nx().PxMilliseconds(15_000).Build()).Error(); err != nil {
		return err
	}
	sum, err := takePending.Exec(ctx, q.redis, []string{pendingKey(s)}, nil).AsIntSlice()
	if err != nil {
		return err
	}
	sql := `UPDATE namespace_statistics SET deduplicated_size_bytes = deduplicated_size_bytes + $2, components_count = components_count + $3 WHERE namespace_id = $1`
	if s.Kind == accounting.KindRepository {
		sql = `UPDATE repositories SET size_bytes = size_bytes + $2, artifacts_count = artifacts_count + $3 WHERE id = $1`
	}
	if _, err := q.pool.Exec(ctx, sql, s.ID, sum[0], sum[1]); err != nil {
		return err
	}
	return q.redis.Do(ctx, b.Del().Key(lease).Build()).Error()
}
