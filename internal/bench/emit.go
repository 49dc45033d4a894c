package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

const (
	emitWriters = 256
	// emissionsEach is how often a namespace is emitted for in a round: the first time
	// it becomes dirty, afterwards it is.
	emissionsEach = 4
)

func emitMeasures() []measure {
	return []measure{{
		ID:      "P3",
		What:    "emissions of a repository and its namespace in one call, 256 writers",
		Against: "the same Redis commands, pipelined bare",
		Unit:    "emissions/s", Want: atLeast(0.9), prepare: prepareEmit,
	}}
}

// emitter emits for many namespaces, each with one repository.
type emitter struct {
	redis  rueidis.Client
	buffer *buffer.Buffer
	marker accounting.Marker
	// scopes are a namespace and its repository in turn.
	scopes []accounting.Scope
}

// newEmitter has an empty Redis.
func newEmitter(ctx context.Context, l *lab, namespaces int) (*emitter, error) {
	redis, err := l.redis(ctx)
	if err != nil {
		return nil, err
	}
	e := &emitter{
		redis:  redis,
		buffer: newBuffer(redis),
		marker: accounting.MarkerOf(time.Now()),
	}
	for range namespaces {
		namespace, repository := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
		e.scopes = append(e.scopes, accounting.NamespaceScope(namespace), accounting.RepositoryScope(namespace, repository))
	}
	return e, nil
}

func (e *emitter) empty(ctx context.Context) error {
	return e.redis.Do(ctx, e.redis.B().Flushall().Build()).Error()
}

func prepareEmit(ctx context.Context, l *lab) (sides, error) {
	namespaces := l.size(50_000)
	e, err := newEmitter(ctx, l, namespaces)
	if err != nil {
		return sides{}, err
	}
	round := func(one func(ctx context.Context, namespace, repository accounting.Scope, first bool) error) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			if err := e.empty(ctx); err != nil {
				return 0, err
			}
			return perSecond(ctx, emitWriters, emissionsEach*namespaces, func(ctx context.Context, i int) error {
				n := i % namespaces
				return one(ctx, e.scopes[2*n], e.scopes[2*n+1], i < namespaces)
			})
		}
	}
	return sides{ours: round(e.emit), peer: round(e.bare)}, nil
}

func (e *emitter) emit(ctx context.Context, namespace, repository accounting.Scope, _ bool) error {
	counters := accounting.Counters{Bytes: 4096, Components: 1}
	failed, err := e.buffer.Emit(ctx, namespace.ID, e.marker, []accounting.Delta{{Scope: repository, Counters: counters}, {Scope: namespace, Counters: counters}})
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%d scopes are refused", len(failed))
	}
	return err
}

// bare writes what an emission writes, and checks nothing. Fair: keys are made once
// for each call, all commands are one pipeline, which rueidis joins with those of the
// other writers; and it is told when a scope becomes dirty, for free.
func (e *emitter) bare(ctx context.Context, namespace, repository accounting.Scope, first bool) error {
	prefix := "stowage:1:{" + strconv.Itoa(accounting.Bucket(namespace.ID)) + "}:"
	id := namespace.ID.String()
	commands := make(rueidis.Commands, 0, 12)
	commands = e.bareScope(commands, prefix, "dirty:repository", "r:"+id+":"+repository.ID.String(), first)
	commands = e.bareScope(commands, prefix, "dirty:namespace", "n:"+id, first)
	for _, result := range e.redis.DoMulti(ctx, commands...) {
		if err := result.Error(); err != nil {
			return err
		}
	}
	return nil
}

func (e *emitter) bareScope(commands rueidis.Commands, prefix, set, member string, first bool) rueidis.Commands {
	b, key, marker := e.redis.B(), prefix+"buf:"+member, strconv.FormatInt(int64(e.marker), 10)
	commands = append(commands, b.Sadd().Key(prefix+set).Member(member).Build())
	if first {
		commands = append(commands, b.Zadd().Key(prefix+"since").ScoreMember().ScoreMember(float64(time.Now().UnixMilli()), member).Build())
	}
	return append(commands,
		b.Hincrby().Key(key).Field(marker+":bytes").Increment(4096).Build(),
		b.Hincrby().Key(key).Field(marker+":components").Increment(1).Build(),
		b.Hincrby().Key(key).Field(marker+":emissions").Increment(1).Build(),
		b.Pexpire().Key(key).Milliseconds(entdb.DefaultBufferTTL.Milliseconds()).Build())
}
