package entdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

// Counters are signed changes of a scope's two counters. Bytes are logical for
// a repository and deduplicated for a namespace.
type Counters struct {
	Bytes      int64
	Components int64
}

// Emission is what one committed transaction changed in one namespace.
type Emission struct {
	NamespaceID uuid.UUID
	// Marker is the start of the newest reconciliation that the transaction
	// saw, in microseconds since 1970; 0 when there was none yet.
	Marker int64
	// Namespace is the change of the namespace's own counters.
	Namespace Counters
	// Repositories are the changes of its repositories' counters, by id.
	Repositories map[uuid.UUID]Counters
}

// Emitter takes emissions after COMMIT. Emit is called once for each namespace
// of a transaction, from the goroutine that committed, with a context that
// ends at the emit timeout. It must not be retried: an increment whose answer
// was lost may have been applied. An error requests a reconciliation of the
// namespace; the write itself has succeeded.
type Emitter interface {
	Emit(ctx context.Context, emission Emission) error
}

// Recorder is an Emitter that remembers, for the unit tests of a registry.
// Its zero value is ready; it is safe for concurrent use.
type Recorder struct {
	mu        sync.Mutex
	emissions []Emission
	err       error
}

// Emit remembers the emission, or fails as FailWith said.
func (r *Recorder) Emit(_ context.Context, emission Emission) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	r.emissions = append(r.emissions, emission)
	return nil
}

// FailWith makes further emissions fail with err; nil makes them succeed.
func (r *Recorder) FailWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// Emissions are those remembered so far, in their order.
func (r *Recorder) Emissions() []Emission {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.emissions)
}

// Namespace is the sum of a namespace's changes so far.
func (r *Recorder) Namespace(id uuid.UUID) Counters {
	return r.sum(func(e Emission) Counters {
		if e.NamespaceID == id {
			return e.Namespace
		}
		return Counters{}
	})
}

// Repository is the sum of a repository's changes so far.
func (r *Recorder) Repository(id uuid.UUID) Counters {
	return r.sum(func(e Emission) Counters { return e.Repositories[id] })
}

func (r *Recorder) sum(of func(Emission) Counters) Counters {
	var sum Counters
	for _, e := range r.Emissions() {
		c := of(e)
		sum.Bytes += c.Bytes
		sum.Components += c.Components
	}
	return sum
}

// errScopes says that Redis answered, but could not take some scopes: their
// keys hold something else. Redis itself is well, so it opens no breaker.
var errScopes = errors.New("the buffer refused scopes, because their keys hold foreign data")

// redisEmitter is the Emitter over the Redis buffer.
type redisEmitter struct {
	buffer *buffer.Buffer
	// taken counts the scopes of emissions, as the drains will.
	taken prometheus.Counter
}

func (r redisEmitter) Emit(ctx context.Context, e Emission) error {
	deltas := deltasOf(e)
	failed, err := r.buffer.Emit(ctx, e.NamespaceID, accounting.Marker(e.Marker), deltas)
	if err != nil {
		return err
	}
	r.taken.Add(float64(len(deltas) - len(failed)))
	if len(failed) > 0 {
		return fmt.Errorf("%w: %d of them", errScopes, len(failed))
	}
	return nil
}

func deltasOf(e Emission) []accounting.Delta {
	deltas := make([]accounting.Delta, 0, len(e.Repositories)+1)
	if e.Namespace != (Counters{}) {
		deltas = append(deltas, accounting.Delta{
			Scope: accounting.NamespaceScope(e.NamespaceID), Counters: accounting.Counters(e.Namespace),
		})
	}
	for id, c := range e.Repositories {
		deltas = append(deltas, accounting.Delta{
			Scope: accounting.RepositoryScope(e.NamespaceID, id), Counters: accounting.Counters(c),
		})
	}
	return deltas
}
