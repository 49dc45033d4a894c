package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/reconcile"
)

const (
	// mendInterval is how often processes that ended by themselves are replaced.
	mendInterval = 100 * time.Millisecond
	// passEvery is in how many of those looks one pass is asked for: so passes
	// run all the time, beside writers and drains.
	passEvery = 3
	// jobTimeout bounds the insertion of the job of a pass, which is not missed.
	jobTimeout = time.Second
)

// rage goes through the plan while the writers write.
func (s *storm) rage(ctx context.Context) error {
	s.Progress.Begin("storm", int(s.Duration.Seconds()))
	defer s.Progress.End()
	began := time.Now()
	for _, step := range s.plan {
		if err := s.until(ctx, began, step.at); err != nil {
			return err
		}
		if err := s.inject(ctx, step); err != nil {
			return fmt.Errorf("inject at %s: %w", step.at, err)
		}
		s.injected[step.kind]++
	}
	return s.until(ctx, began, s.Duration)
}

// until waits for a moment of the storm, and replaces who died meanwhile.
func (s *storm) until(ctx context.Context, began time.Time, at time.Duration) error {
	tick := time.NewTicker(mendInterval)
	defer tick.Stop()
	for looks := 0; ; looks++ {
		for ; s.seconds < int(time.Since(began).Seconds()) && s.seconds < int(s.Duration.Seconds()); s.seconds++ {
			s.Progress.Step()
		}
		if time.Since(began) >= at {
			return nil
		}
		if err := errors.Join(s.workers.mend(s.workerDied), s.writers.mend(s.writerDied)); err != nil {
			return err
		}
		if looks%passEvery == 0 {
			s.askForPass(ctx)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// askForPass inserts the job of a pass over every other namespace in turn, so
// that passes meet writers and drains; what happens to the others is found only
// if it is noticed. It makes no request, which would be taken for that. That it
// fails because a connection is dead does not matter.
func (s *storm) askForPass(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	namespace := s.namespaces[s.asked%len(s.namespaces)]
	s.asked += 2
	_, _ = s.queue.Insert(ctx, reconcile.NamespaceArgs{NamespaceID: namespace}, nil)
}

func (s *storm) inject(ctx context.Context, step step) error {
	switch step.kind {
	case killWriter:
		return s.writers.kill(step.pick, s.writerKilled)
	case killWorker:
		return s.workers.kill(step.pick, s.workerEnded)
	case crashPostgres:
		if err := s.Postgres.Crash(); err != nil {
			return err
		}
		return errors.Join(pause(ctx, step.down), s.Postgres.Start(ctx))
	case restartRedis:
		return s.restartRedis(ctx, step.down, func() error { return nil })
	case emptyRedis:
		return s.loseRedis(ctx, step.down, s.Redis.Forget)
	case rewindRedis:
		return s.loseRedis(ctx, step.down, s.Redis.Rewind)
	case keepRedis:
		return s.Redis.Keep()
	case freezeRedis:
		if err := s.Redis.Pause(); err != nil {
			return err
		}
		return errors.Join(pause(ctx, step.down), s.Redis.Resume())
	case cutPostgres:
		return retry(ctx, s.cutPostgres)
	case cutRedis:
		return retry(ctx, s.cutRedis)
	default:
		return fmt.Errorf("unknown kind %d", step.kind)
	}
}

func (s *storm) restartRedis(ctx context.Context, down time.Duration, meanwhile func() error) error {
	if err := s.Redis.Stop(); err != nil {
		return err
	}
	return errors.Join(meanwhile(), pause(ctx, down), s.Redis.Start(ctx))
}

// loseRedis remembers when what Redis lost was missed first.
func (s *storm) loseRedis(ctx context.Context, down time.Duration, lose func() error) error {
	err := s.restartRedis(ctx, down, lose)
	s.lost = time.Now()
	return err
}

// cutPostgres cuts each connection that is not this process's with even odds.
func (s *storm) cutPostgres(ctx context.Context) error {
	var n int
	err := s.pool.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND application_name <> $1 AND random() < 0.5`, clientName).Scan(&n)
	s.cutInPostgres += n
	return err
}

// cutRedis cuts every other connection that is not this process's.
func (s *storm) cutRedis(ctx context.Context) error {
	list, err := s.redis.Do(ctx, s.redis.B().ClientList().Build()).ToString()
	if err != nil {
		return err
	}
	i := 0
	for line := range strings.Lines(list) {
		var id int64
		if _, err := fmt.Sscanf(line, "id=%d", &id); err != nil || strings.Contains(line, "name="+clientName) {
			continue
		}
		if i++; i%2 == 0 {
			continue
		}
		err := s.redis.Do(ctx, s.redis.B().ClientKill().Id(id).Build()).Error()
		if _, gone := rueidis.IsRedisErr(err); err != nil && !gone {
			return err
		}
		s.cutInRedis++
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
