package buffer

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/redistest"
)

// pending is what the buffer holds for one scope.
func (b *bundle) pending(t *testing.T, s accounting.Scope) Pending {
	t.Helper()
	all, err := b.Pending(context.WithoutCancel(t.Context()), []accounting.Scope{s})
	require.NoError(t, err)
	require.Contains(t, all, s)
	return all[s]
}

func marked(marker accounting.Marker, bytes, components, emissions int64) MarkedCounters {
	return MarkedCounters{Marker: marker, Counters: accounting.Counters{Bytes: bytes, Components: components}, Emissions: emissions}
}

// emitAmongOthers emits for a repository that cannot take it, and for two scopes that
// can.
func (b *bundle) emitAmongOthers(t *testing.T) {
	t.Helper()
	other := accounting.RepositoryScope(b.namespace.ID, uuid.Must(uuid.NewV7()))
	before := int64(len(b.pending(t, b.namespace).Buffered))
	failed, err := b.Emit(t.Context(), b.namespace.ID, 9, []accounting.Delta{
		delta(b.namespace, 1, 1), delta(b.repository, 1, 1), delta(other, 2, 1),
	})
	require.NoError(t, err)
	require.Equal(t, []accounting.Scope{b.repository}, failed)
	require.Equal(t, []MarkedCounters{marked(9, 1+before, 1+before, 1+before)}, b.pending(t, b.namespace).Buffered)
	require.Equal(t, []MarkedCounters{marked(9, 2, 1, 1)}, b.pending(t, other).Buffered)
}

func TestEmit(t *testing.T) {
	t.Parallel()

	t.Run("adds signed deltas by scope and marker", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 5, delta(b.namespace, 10, 1), delta(b.repository, 30, 1))
		b.emit(t, 5, delta(b.namespace, -25, -2))
		b.emit(t, 0, delta(b.namespace, 1, 0))
		require.Equal(t, []MarkedCounters{marked(0, 1, 0, 1), marked(5, -15, -1, 2)}, b.pending(t, b.namespace).Buffered)
		require.Equal(t, []MarkedCounters{marked(5, 30, 1, 1)}, b.pending(t, b.repository).Buffered)
		require.Equal(t, []string{member(b.namespace)}, b.members(t, dirtyNamespaceName))
		require.Equal(t, []string{member(b.repository)}, b.members(t, dirtyRepositoryName))
	}))

	t.Run("without deltas asks nothing of Redis", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.server.Stop()
		b.emit(t, 0)
	})

	t.Run("AC13 every emit refreshes the TTL, and nothing else has one", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		b.claim(t)
		b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		for _, s := range []accounting.Scope{b.namespace, b.repository} {
			key := bufferKey(b.bucket, member(s))
			b.do(t, "PEXPIRE", key, "5000")
			b.emit(t, 7, delta(s, 1, 1))
			require.Greater(t, b.ttl(t, key), time.Hour-time.Minute)
			b.do(t, "PEXPIRE", key, "5000")
			b.emit(t, 7, delta(s, 1, 1))
			require.Greater(t, b.ttl(t, key), time.Hour-time.Minute)
			require.Negative(t, b.ttl(t, flushKey(b.bucket, member(s))))
		}
		for _, name := range []string{dirtyNamespaceName, dirtyRepositoryName, inFlightName} {
			require.Negative(t, b.ttl(t, b.set(name)))
		}
	}))

	for name, tc := range map[string]struct {
		scope    func(b *bundle) accounting.Scope
		marker   accounting.Marker
		bytes    int64
		expected string
	}{
		"a scope of another namespace": {scope: func(*bundle) accounting.Scope { return accounting.NamespaceScope(uuid.New()) }, expected: "is of namespace"},
		"a namespace with another id": {scope: func(b *bundle) accounting.Scope {
			return accounting.Scope{Kind: accounting.KindNamespace, ID: uuid.New(), Namespace: b.namespace.ID}
		}, expected: "has the id"},
		"an unknown kind": {scope: func(b *bundle) accounting.Scope {
			return accounting.Scope{Kind: 3, ID: uuid.New(), Namespace: b.namespace.ID}
		}, expected: "scope_kind(3)"},
		"a negative marker":  {marker: -1, expected: "marker -1"},
		"a marker too large": {marker: ceiling, expected: "marker 1000000000000000000"},
		"a delta too large":  {bytes: ceiling, expected: "1000000000000000000 bytes"},
		"a delta too small":  {bytes: -ceiling, expected: "-1000000000000000000 bytes"},
	} {
		t.Run("E14 refuses before anything is changed: "+name, everywhere(func(t *testing.T, b *bundle) {
			scope := b.repository
			if tc.scope != nil {
				scope = tc.scope(b)
			}
			_, err := b.Emit(t.Context(), b.namespace.ID, tc.marker, []accounting.Delta{delta(b.namespace, 1, 1), delta(scope, tc.bytes, 1)})
			require.ErrorContains(t, err, tc.expected)
			require.Empty(t, b.dump(t))
		}))
	}

	for _, name := range []string{dirtyNamespaceName, dirtyRepositoryName, quarantineName} {
		t.Run("E14 a set of a wrong type leaves everything unchanged: "+name, everywhere(func(t *testing.T, b *bundle) {
			b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
			b.do(t, "DEL", b.set(name))
			b.do(t, "SET", b.set(name), "text")
			before := b.dump(t)
			_, err := b.Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1), delta(b.repository, 1, 1)})
			require.ErrorContains(t, err, b.set(name)+" is a string, not a set")
			require.ErrorContains(t, err, "rename or delete it")
			require.Equal(t, before, b.dump(t))
		}))
	}

	for name, spoil := range map[string][]string{
		"wrong type":             {"SET", "text"},
		"a list":                 {"RPUSH", "text"},
		"text for a number":      {"HSET", "9:bytes", "text"},
		"a number with a zero":   {"HSET", "9:bytes", "007"},
		"a fraction":             {"HSET", "9:bytes", "1.5"},
		"an empty number":        {"HSET", "9:bytes", ""},
		"an overflow":            {"HSET", "9:bytes", strconv.Itoa(1<<63 - 1)},
		"more digits than int64": {"HSET", "9:bytes", "99999999999999999999999999"},
	} {
		t.Run("E14 a bad buffer fails alone and unchanged: "+name, everywhere(func(t *testing.T, b *bundle) {
			key := bufferKey(b.bucket, member(b.repository))
			b.do(t, spoil[0], key, spoil[1:]...)
			before := b.dump(t)
			b.emitAmongOthers(t)
			require.Equal(t, before[key], b.dump(t)[key])
			require.NotContains(t, b.members(t, dirtyRepositoryName), member(b.repository))
		}))
	}

	for name, left := range map[string]map[string]string{
		"components": {"9:bytes": "1", "9:components": "text"},
		"emissions":  {"9:bytes": "1", "9:components": "1", "9:emissions": "text"},
	} {
		t.Run("E14 a buffer that takes one counter and not another fails alone: "+name, everywhere(func(t *testing.T, b *bundle) {
			key := bufferKey(b.bucket, member(b.repository))
			b.do(t, "HSET", key, "9:"+name, "text")
			b.emitAmongOthers(t)
			reply := b.do(t, "HGETALL", key)
			held, err := reply.AsStrMap()
			require.NoError(t, err)
			require.Equal(t, left, held)
			require.NotContains(t, b.members(t, dirtyRepositoryName), member(b.repository))

			b.do(t, "SADD", b.set(dirtyRepositoryName), member(b.repository))
			b.emitAmongOthers(t)
			require.Equal(t, []accounting.Scope{b.repository}, b.claim(t).Corrupt, "dirty as it was before")
		}))
	}

	t.Run("E14 eighteen digits on both sides are added", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, ceiling-1, delta(b.namespace, ceiling-1, 1-ceiling))
		b.emit(t, ceiling-1, delta(b.namespace, ceiling-1, 1-ceiling))
		require.Equal(t, []MarkedCounters{marked(ceiling-1, 2*ceiling-2, 2-2*ceiling, 2)}, b.pending(t, b.namespace).Buffered)
	}))

	t.Run("E14 a scope that Redis refuses is failed and not dirty", everywhere(func(t *testing.T, b *bundle) {
		b.onEveryNode(t, "ACL", "SETUSER", "default", "-hincrby")
		failed, err := b.Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1), delta(b.repository, 1, 1)})
		require.NoError(t, err)
		require.Equal(t, []accounting.Scope{b.namespace, b.repository}, failed)
		require.Empty(t, b.dump(t))
	}))

	t.Run("E14 a set of a wrong type leaves the other set without what became dirty", everywhere(func(t *testing.T, b *bundle) {
		deltas := []accounting.Delta{delta(b.namespace, 1, 1), delta(b.repository, 1, 1)}
		for _, name := range []string{dirtyRepositoryName, dirtyNamespaceName} {
			b.do(t, "SET", b.set(name), "text")
			before := b.dump(t)
			_, err := b.Emit(t.Context(), b.namespace.ID, 0, deltas)
			require.ErrorContains(t, err, b.set(name)+" is a string, not a set")
			require.Equal(t, before, b.dump(t))
			b.do(t, "DEL", b.set(name))
			slices.Reverse(deltas)
		}
	}))

	for name, configure := range map[string][]string{
		"OOM":            {"CONFIG", "SET", "maxmemory", "1"},
		"can't run this": {"ACL", "SETUSER", "default", "-sadd"},
	} {
		t.Run("E14 a Redis that takes nothing says so, and nothing is added: "+name, everywhere(func(t *testing.T, b *bundle) {
			b.onEveryNode(t, configure...)
			_, err := b.Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1), delta(b.repository, 1, 1)})
			require.ErrorContains(t, err, name)
			require.Empty(t, b.dump(t))
		}))
	}

	t.Run("E14 a second counter that overflows leaves the first one added", everywhere(func(t *testing.T, b *bundle) {
		b.do(t, "HSET", bufferKey(b.bucket, member(b.repository)), "9:components", strconv.Itoa(-1<<63))
		failed, err := b.Emit(t.Context(), b.namespace.ID, 9, []accounting.Delta{delta(b.repository, -5, -1)})
		require.NoError(t, err)
		require.Equal(t, []accounting.Scope{b.repository}, failed)
		require.Equal(t, []MarkedCounters{marked(9, -5, -1<<63, 0)}, b.pending(t, b.repository).Buffered)
	}))

	t.Run("E14 a caller that goes away leaves all of an emission or nothing", everywhere(func(t *testing.T, b *bundle) {
		var done, lost int64
		for i := 0; done < 100 || lost < 100; i++ { // deadlines grow until some are met, whatever else the machine does
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(time.Duration(100+i)*time.Microsecond))
			if _, err := b.Emit(ctx, b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1), delta(b.repository, 1, 1)}); err == nil {
				done++
			} else {
				lost++
			}
			cancel()
		}
		b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1)) // behind all that was under way
		n, r := b.pending(t, b.namespace).Buffered, b.pending(t, b.repository).Buffered
		require.Equal(t, n, r)
		require.Len(t, n, 1)
		require.Equal(t, marked(0, n[0].Bytes, n[0].Bytes, n[0].Bytes), n[0])
		require.Greater(t, n[0].Bytes, done)
	}))

	t.Run("a scope in quarantine takes no deltas and says so", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		require.NoError(t, b.Quarantine(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		failed, err := b.Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1), delta(b.repository, 1, 1)})
		require.NoError(t, err)
		require.Equal(t, []accounting.Scope{b.repository}, failed)
		require.Equal(t, []MarkedCounters{marked(0, 1, 1, 1)}, b.pending(t, b.repository).Buffered, "kept as it was")
		require.Equal(t, []string{member(b.repository)}, b.members(t, dirtyRepositoryName), "until it is forgotten")
	}))

	t.Run("AC7 Redis that is down or frozen costs no more than the context allows", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(t, 0, delta(b.namespace, 1, 1))
		b.server.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := b.Emit(ctx, b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1)})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(start), patience)
		b.server.Resume()
		b.server.Stop()
		_, err = b.Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1)})
		require.Error(t, err)
	})

	for name, cfg := range map[string]Config{
		"zero": {}, "a microsecond": {TTL: time.Microsecond, LeaseTTL: time.Microsecond},
	} {
		t.Run("a TTL at which Redis would drop the buffer at once is refused: "+name, everywhere(func(t *testing.T, b *bundle) {
			_, err := New(b.client, cfg).Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1)})
			require.ErrorContains(t, err, "must be at least 1ms")
			_, err = New(b.client, cfg).Claim(t.Context(), b.bucket, "holder", uuid.Must(uuid.NewV7()), 1)
			require.ErrorContains(t, err, "must be at least 1ms")
		}))
	}
}

// ttl is negative for a key that never expires.
func (b *bundle) ttl(t *testing.T, key string) time.Duration {
	t.Helper()
	reply := b.do(t, "PTTL", key)
	ms, err := reply.AsInt64()
	require.NoError(t, err)
	require.NotEqual(t, int64(-2), ms, "%s is missing", key)
	return time.Duration(ms) * time.Millisecond
}

// TestEmitIsNeverRepeated loses the answer of an emission that was executed. The
// client may retry what it likes: it has rueidis's defaults.
func TestEmitIsNeverRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.emit(t, 0, delta(b.namespace, 1, 1)) // Redis knows the script now
	proxy := newProxy(t, b.server)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{proxy.addr}, ForceSingleClient: true, DisableCache: true, PipelineMultiplex: -1,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)

	proxy.mute.Store(true)
	_, err = New(client, b.cfg).Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1)})
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []MarkedCounters{marked(0, 2, 2, 2)}, b.pending(t, b.namespace).Buffered)
}

// proxy stands between a client and Redis. Once muted, it closes a connection in
// place of passing the next answer on.
type proxy struct {
	addr string
	mute atomic.Bool
}

func newProxy(t *testing.T, server *redistest.Server) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	p := &proxy{addr: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client, server.Addr)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn, addr string) {
	defer client.Close()
	redis, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer redis.Close()
	go func() {
		_, _ = io.Copy(redis, client)
		redis.Close()
	}()
	answer := make([]byte, 1<<16)
	for {
		n, err := redis.Read(answer)
		if err != nil {
			return
		}
		if p.mute.CompareAndSwap(true, false) {
			return
		}
		if _, err := client.Write(answer[:n]); err != nil {
			return
		}
	}
}
