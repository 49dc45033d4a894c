package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for want, errs := range map[outcome][]error{
		outcomeDone:    {nil},
		outcomeRefused: {entpublish.ErrNotFound, entpublish.ErrConflict},
		outcomeUnknown: {fmt.Errorf("%w: %w", entdb.ErrCommitUnknown, io.ErrUnexpectedEOF)},
		outcomeBroken: {
			&pgconn.PgError{Code: "57P01", SeverityUnlocalized: "FATAL"}, &net.OpError{Err: io.EOF},
			io.ErrUnexpectedEOF, pgconn.ErrConnClosed,
		},
		outcomeDeadlock: {&pgconn.PgError{Code: "40P01", SeverityUnlocalized: "ERROR"}},
		outcomeWrong: {
			&pgconn.PgError{Code: "23505", SeverityUnlocalized: "ERROR"}, errors.New("what is this"),
			context.DeadlineExceeded, errors.Join(entpublish.ErrNotFound, errInconsistent),
			entdb.ErrRepository,
		},
	} {
		for _, err := range errs {
			if err != nil {
				err = fmt.Errorf("wrapped: %w", err)
			}
			require.Equal(t, want, classify(err), "%v", err)
		}
	}
}

func TestAcknowledgedResultsMustFit(t *testing.T) {
	t.Parallel()
	ref := entpublish.Ref{Name: "own"}
	whenThere := func(b belief) bool { return b != absent }
	for name, c := range map[string]struct {
		was  belief
		err  error
		want belief
		fits bool
	}{
		"what is there goes":              {visible, nil, hidden, true},
		"what is not there cannot go":     {absent, nil, absent, false},
		"what is there cannot be missing": {visible, entpublish.ErrNotFound, visible, false},
		"what is not there is missing":    {absent, entpublish.ErrNotFound, absent, true},
		"nothing is in no conflict":       {absent, entpublish.ErrConflict, absent, false},
		"a lost answer may mean either":   {visible, entdb.ErrCommitUnknown, unknown, true},
		"after that success tells":        {unknown, nil, hidden, true},
		"and so does a failure":           {unknown, entpublish.ErrNotFound, absent, true},
		"a broken connection changes not": {visible, io.EOF, visible, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &registry{own: "own", beliefs: map[entpublish.Ref]belief{ref: c.was}}
			err := r.learn(ref, c.err, hidden, whenThere)
			require.Equal(t, !c.fits, errors.Is(err, errInconsistent), "%v", err)
			require.Equal(t, c.want, r.beliefs[ref])
			require.ErrorIs(t, r.learn(entpublish.Ref{Name: "shared"}, c.err, hidden, whenThere), c.err)
		})
	}
}

// told collects the events of a writer, and calls after behind each.
type told struct {
	t      *testing.T
	mu     sync.Mutex
	events []event
	after  func(events []event)
}

func (o *told) Write(line []byte) (int, error) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
	o.after(o.events)
	return len(line), nil
}

// prepared is a database with what writers work on.
func prepared(t *testing.T) (url string) {
	t.Helper()
	url = dbtest.NewURL(t)
	s := &storm{Config: Config{Namespaces: 2}, pool: dbtest.Open(t, url)}
	require.NoError(t, s.createNamespaces(t.Context()))
	require.Len(t, s.namespaces, 2)
	return url
}

func count(events []event, kind string) int {
	n := 0
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func TestWriterEndsInOrder(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	const operations = 200
	out := &told{t: t, after: func(events []event) {
		if count(events, eventBegin) == operations {
			stop()
		}
	}}
	require.NoError(t, Write(ctx, WriterConfig{
		DatabaseURL: prepared(t), RedisAddress: redistest.Start(t).Addr, Seed: 1, Number: 1, Out: out, Log: io.Discard,
	}))
	require.Equal(t, operations, count(out.events, eventEnd), "the operation under way is finished")
	require.Equal(t, eventClosed, out.events[len(out.events)-1].Kind)
	names := map[string]bool{}
	for _, e := range out.events {
		require.NotContains(t, []outcome{outcomeWrong, outcomeDeadlock, outcomeUnknown, outcomeBroken}, e.Outcome, e.Text)
		names[e.Operation] = true
	}
	require.Len(t, names, 8+1, "each operation was done: %v", names)
}

func TestWriterTellsWhatItOwes(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	redis := redistest.Start(t)
	down := make(chan struct{})
	var once sync.Once
	out := &told{t: t, after: func(events []event) {
		if count(events, eventEnd) > 0 {
			once.Do(func() { close(down) })
		}
		if count(events, eventRequested) > 0 {
			stop()
		}
	}}
	var log strings.Builder
	written := make(chan error, 1)
	url := prepared(t)
	go func() {
		written <- Write(ctx, WriterConfig{DatabaseURL: url, RedisAddress: redis.Addr, Number: 1, Out: out, Log: &log})
	}()
	<-down
	redis.Stop()
	require.NoError(t, <-written)
	require.Positive(t, count(out.events, eventUnsent))
	require.Contains(t, log.String(), "emission failed")
	var open bool
	require.NoError(t, dbtest.Open(t, url).QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM reconciliation_requests)`).Scan(&open))
	require.True(t, open)
}
