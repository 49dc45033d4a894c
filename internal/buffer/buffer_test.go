package buffer

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(sharing{m}) }

// bundle is a buffer on a Redis of its own, and one namespace with a repository.
type bundle struct {
	*Buffer
	server     *redistest.Server // nil in tests that run everywhere
	client     rueidis.Client
	namespace  accounting.Scope
	repository accounting.Scope
	bucket     int
}

// setup is for tests that stop or pause the server. All others run everywhere.
func setup(t *testing.T) *bundle {
	t.Helper()
	return on(t, redistest.Start(t))
}

func on(t *testing.T, server *redistest.Server) *bundle {
	t.Helper()
	b := newBundle(server.Client(t))
	b.server = server
	return b
}

// newBundle is in another bucket than someNamespace.
func newBundle(client rueidis.Client) *bundle {
	id := uuid.Must(uuid.NewV7())
	for accounting.Bucket(id) == accounting.Bucket(uuid.MustParse(someNamespace)) {
		id = uuid.Must(uuid.NewV7())
	}
	return &bundle{
		Buffer: New(client, Config{TTL: time.Hour, LeaseTTL: time.Minute}), client: client,
		namespace:  accounting.NamespaceScope(id),
		repository: accounting.RepositoryScope(id, uuid.Must(uuid.NewV7())),
		bucket:     accounting.Bucket(id),
	}
}

func delta(s accounting.Scope, bytes, components int64) accounting.Delta {
	return accounting.Delta{Scope: s, Counters: accounting.Counters{Bytes: bytes, Components: components}}
}

// emit emits for the bundle's namespace and expects every delta to be taken.
func (b *bundle) emit(t *testing.T, marker accounting.Marker, deltas ...accounting.Delta) {
	t.Helper()
	failed, err := b.Emit(t.Context(), b.namespace.ID, marker, deltas)
	require.NoError(t, err)
	require.Empty(t, failed)
}

func (b *bundle) claim(t *testing.T) Claim {
	t.Helper()
	claim, err := b.Claim(t.Context(), b.bucket, "holder", uuid.Must(uuid.NewV7()), 500)
	require.NoError(t, err)
	require.False(t, claim.Busy)
	return claim
}

// do runs a command on a key by hand, as an operator would.
func (b *bundle) do(t *testing.T, command, key string, args ...string) rueidis.RedisMessage {
	t.Helper()
	reply, err := b.client.Do(context.WithoutCancel(t.Context()), b.client.B().Arbitrary(command).Keys(key).Args(args...).Build()).ToMessage()
	if !rueidis.IsRedisNil(err) {
		require.NoError(t, err)
	}
	return reply
}

// onEveryNode runs a command that has no key.
func (b *bundle) onEveryNode(t *testing.T, words ...string) {
	t.Helper()
	for _, node := range b.client.Nodes() {
		require.NoError(t, node.Do(t.Context(), node.B().Arbitrary(words...).Build()).Error())
	}
}

func (b *bundle) set(name string) string { return bucketPrefix(b.bucket) + name }

func (b *bundle) members(t *testing.T, name string) []string {
	t.Helper()
	reply := b.do(t, "SMEMBERS", b.set(name))
	members, err := reply.AsStrSlice()
	require.NoError(t, err)
	return members
}

// dump is every key with its type and serialized value, lifetimes left out.
func (b *bundle) dump(t *testing.T) map[string]string {
	t.Helper()
	dump := make(map[string]string)
	for _, node := range b.client.Nodes() {
		keys, err := node.Do(t.Context(), node.B().Keys().Pattern("*").Build()).AsStrSlice()
		require.NoError(t, err)
		for _, key := range keys {
			dump[key], err = node.Do(t.Context(), node.B().Dump().Key(key).Build()).ToString()
			require.NoError(t, err)
		}
	}
	return dump
}

func (b *bundle) exists(t *testing.T, key string) bool {
	t.Helper()
	reply := b.do(t, "EXISTS", key)
	n, err := reply.AsInt64()
	require.NoError(t, err)
	return n == 1
}

// How long, and how often, to look for what happens on Redis's own clock.
const (
	wait = 30 * time.Second
	tick = time.Millisecond
)

// patience is how long a call with a context of a tenth of a second may take on
// a loaded machine. Without the context rueidis would wait twice as long.
const patience = 5 * time.Second
