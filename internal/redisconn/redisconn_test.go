package redisconn

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// How long, and how often, to look for what other processes do.
const (
	wait = 30 * time.Second
	tick = 10 * time.Millisecond
)

func open(t *testing.T, reach rueidis.ClientOption) rueidis.Client {
	t.Helper()
	client, err := Open(reach, "stowage-test")
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func do(t *testing.T, client rueidis.Client, words ...string) string {
	t.Helper()
	text, err := client.Do(context.WithoutCancel(t.Context()), client.B().Arbitrary(words...).Build()).ToString()
	require.NoError(t, err)
	return text
}

func TestOpen(t *testing.T) {
	t.Parallel()

	t.Run("one server, under a name", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		client := open(t, rueidis.ClientOption{InitAddress: []string{server.Addr}})
		require.Equal(t, rueidis.ClientModeStandalone, client.Mode())
		require.Contains(t, do(t, client, "CLIENT", "LIST"), "name=stowage-test ")
	})

	t.Run("only addresses, users, passwords and TLS are taken over", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		client := open(t, rueidis.ClientOption{
			InitAddress: []string{server.Addr}, ConnLifetime: time.Millisecond, SelectDB: 5, ClientName: "else",
		})
		require.NotContains(t, do(t, client, "CLIENT", "LIST"), "name=else ")
		require.Contains(t, do(t, client, "CLIENT", "INFO"), " db=0 ")
	})

	t.Run("S3 a refused password is not in the error", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		do(t, server.Client(t), "ACL", "SETUSER", "worker", "on", ">swordfish", "~*", "+@all")
		reach := rueidis.ClientOption{InitAddress: []string{server.Addr}, Username: "worker", Password: "swordfish"}
		require.Equal(t, "worker", do(t, open(t, reach), "ACL", "WHOAMI"))
		reach.Password = "hunter2"
		_, err := Open(reach, "stowage-test")
		require.ErrorContains(t, err, server.Addr)
		require.ErrorContains(t, err, "WRONGPASS")
		require.NotContains(t, err.Error(), "hunter2")
	})

	t.Run("TLS is spoken", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		_, err := Open(rueidis.ClientOption{InitAddress: []string{server.Addr}, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}}, "stowage-test")
		require.Error(t, err, "the server speaks none")
	})

	t.Run("nobody at the address", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		server.Stop()
		_, err := Open(rueidis.ClientOption{InitAddress: []string{server.Addr}}, "stowage-test")
		require.ErrorContains(t, err, "redis at "+server.Addr)
		require.ErrorContains(t, err, "refused")
	})

	t.Run("a server that never answers", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, listener.Close()) })
		start := time.Now()
		_, err = Open(rueidis.ClientOption{InitAddress: []string{listener.Addr().String()}}, "stowage-test")
		require.Error(t, err)
		require.Less(t, time.Since(start), 5*dialTimeout)
	})

	t.Run("E1 a call that must connect anew keeps its deadline", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		client := open(t, rueidis.ClientOption{InitAddress: []string{server.Addr}})
		server.Stop()
		listener, err := net.Listen("tcp", server.Addr) // connects, and never answers
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, listener.Close()) })
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			start := time.Now()
			require.Error(t, client.Do(ctx, client.B().Ping().Build()).Error())
			require.Less(t, time.Since(start), dialTimeout)
			cancel()
		}
	})

	t.Run("several addresses of no cluster", func(t *testing.T) {
		t.Parallel()
		a, b := redistest.Start(t), redistest.Start(t)
		_, err := Open(rueidis.ClientOption{InitAddress: []string{a.Addr, b.Addr}}, "stowage-test")
		require.ErrorContains(t, err, "several addresses are seeds of a cluster, and this is none: name one server")
	})

	t.Run("one seed of a cluster", func(t *testing.T) {
		t.Parallel()
		reach := redistest.StartCluster(t).Reach()
		reach.InitAddress = reach.InitAddress[:1]
		client := open(t, reach)
		require.Equal(t, rueidis.ClientModeCluster, client.Mode())
		require.Equal(t, "OK", do(t, client, "SET", "key", "value"))
	})
}

// TestSentinel follows a fail-over, by another run id of the primary.
func TestSentinel(t *testing.T) {
	t.Parallel()
	servers := redistest.StartReplicated(t)
	reach := servers.Reach()
	reach.Sentinel.Username, reach.Sentinel.Password = "watcher", "hunter2"
	sentinel := direct(t, reach.InitAddress[0])
	do(t, sentinel, "ACL", "SETUSER", "watcher", "on", ">hunter2", "~*", "&*", "+@all")
	do(t, sentinel, "ACL", "SETUSER", "default", "off")

	client := open(t, reach)
	require.Equal(t, rueidis.ClientModeSentinel, client.Mode())
	runID := func() string {
		info, err := client.Do(t.Context(), client.B().Info().Section("server").Build()).ToString()
		if err != nil {
			return ""
		}
		_, rest, _ := strings.Cut(info, "run_id:")
		return rest[:40]
	}
	before := runID()
	require.NotEmpty(t, before)
	do(t, sentinel, "ACL", "SETUSER", "default", "on")
	servers.FailOver()
	require.Eventually(t, func() bool {
		err := client.Do(t.Context(), client.B().Set().Key("key").Value("value").Build()).Error()
		return err == nil && runID() != before
	}, wait, tick)
}

// direct is a client of the very server.
func direct(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}
