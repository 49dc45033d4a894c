package buffer

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/redistest"
)

// BenchmarkEmit compares an emission (two scopes, one script) with the bare
// commands it stands for, pipelined, from many goroutines.
func BenchmarkEmit(b *testing.B) {
	client := redistest.Start(b).Client(b)
	buf := New(client, Config{TTL: time.Hour, LeaseTTL: time.Minute})
	scopes := manyScopes(1000)
	var turn atomic.Int64
	next := func() (namespace, repository accounting.Scope) {
		i := int(turn.Add(1)) % (len(scopes) / 2)
		return scopes[2*i], scopes[2*i+1]
	}
	b.Run("emit", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				n, r := next()
				failed, err := buf.Emit(b.Context(), n.ID, 0, []accounting.Delta{delta(n, 1, 1), delta(r, 1, 1)})
				require.NoError(b, err)
				require.Empty(b, failed)
			}
		})
	})
	b.Run("bare", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				n, r := next()
				for _, result := range client.DoMulti(b.Context(), bare(client, n, r)...) {
					require.NoError(b, result.Error())
				}
			}
		})
	})
}

func bare(client rueidis.Client, scopes ...accounting.Scope) (commands rueidis.Commands) {
	for _, s := range scopes {
		bucket, m := accounting.Bucket(s.Namespace), member(s)
		key := "bare:" + bufferKey(bucket, m)
		commands = append(commands, client.B().Sadd().Key("bare:"+bucketPrefix(bucket)).Member(m).Build())
		for _, counter := range []string{"bytes", "components", "emissions"} {
			commands = append(commands, client.B().Hincrby().Key(key).Field("0:"+counter).Increment(1).Build())
		}
		commands = append(commands, client.B().Expire().Key(key).Seconds(3600).Build())
	}
	return commands
}

// manyScopes are a namespace and a repository of it in turn.
func manyScopes(n int) []accounting.Scope {
	scopes := make([]accounting.Scope, 0, n)
	for len(scopes) < n {
		namespace := uuid.Must(uuid.NewV7())
		scopes = append(scopes, accounting.NamespaceScope(namespace),
			accounting.RepositoryScope(namespace, uuid.Must(uuid.NewV7())))
	}
	return scopes
}

// BenchmarkClaim reports, for each chunk size, how long claim
// and finish occupy Redis and how many scopes a second claim and finish get through.
func BenchmarkClaim(b *testing.B) {
	for _, chunk := range []int{100, 200, 500, 1000, 2000} {
		b.Run(fmt.Sprintf("chunk=%d", chunk), func(b *testing.B) {
			client := redistest.Start(b).Client(b)
			buf := New(client, Config{TTL: time.Hour, LeaseTTL: time.Minute})
			namespace := uuid.Must(uuid.NewV7())
			bucket := accounting.Bucket(namespace)
			var claiming, finishing float64
			for b.Loop() {
				b.StopTimer()
				emitMany(b, buf, namespace, chunk)
				start := cpu(b, client)
				b.StartTimer()
				claim, err := buf.Claim(b.Context(), bucket, "bench", uuid.Must(uuid.NewV7()), chunk)
				b.StopTimer()
				claimed := cpu(b, client)
				b.StartTimer()
				require.NoError(b, err)
				require.Len(b, claim.Flushes, chunk)
				require.NoError(b, buf.Finish(b.Context(), bucket, claim.Flushes))
				b.StopTimer()
				claiming, finishing = claiming+claimed-start, finishing+cpu(b, client)-claimed
				b.StartTimer()
			}
			b.ReportMetric(claiming/float64(b.N)*1000, "claim-cpu-ms/op")
			b.ReportMetric(finishing/float64(b.N)*1000, "finish-cpu-ms/op")
			b.ReportMetric(float64(chunk*b.N)/b.Elapsed().Seconds(), "scopes/s")
		})
	}
}

func emitMany(b *testing.B, buf *Buffer, namespace uuid.UUID, n int) {
	b.Helper()
	deltas := make([]accounting.Delta, 0, n)
	for range n {
		deltas = append(deltas, delta(accounting.RepositoryScope(namespace, uuid.Must(uuid.NewV7())), 1, 1))
	}
	for len(deltas) > 0 {
		part := deltas[:min(100, len(deltas))]
		_, err := buf.Emit(b.Context(), namespace, 1_700_000_000_000_000, part)
		require.NoError(b, err)
		deltas = deltas[len(part):]
	}
}

// cpu is how many seconds Redis's main thread has worked. It is measured
// instead of time, which says more about the machine's other work.
func cpu(b *testing.B, client rueidis.Client) (seconds float64) {
	b.Helper()
	info, err := client.Do(b.Context(), client.B().Info().Section("cpu").Build()).ToString()
	require.NoError(b, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user_main_thread" || name == "used_cpu_sys_main_thread" {
			part, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			seconds += part
		}
	}
	return seconds
}
