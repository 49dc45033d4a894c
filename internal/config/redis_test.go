package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/redistest"
)

// TestClientOptionReachesRedis configures a real Redis that only speaks to a
// user of its access control list, in the clear and by TLS.
func TestClientOptionReachesRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	certificate, key := selfSigned(t)
	secured := secure(t, server, certificate, key)

	for _, tc := range []struct {
		name string
		source
		want string
	}{
		{"by password", source{file: "redis: {addresses: ['" + server.Addr + "']}"}, ""},
		{"by TLS", source{file: "redis: {addresses: ['" + secured + "'], tls: {enabled: true, ca_file: " + certificate + "}}"}, ""},
		{"by TLS with a client certificate", source{file: "redis: {addresses: ['" + secured + "'], tls: {enabled: true, ca_file: " + certificate + ", cert_file: " + certificate + ", key_file: " + key + "}}"}, ""},
		{"by TLS without verification, if asked for", source{file: "redis: {addresses: ['" + secured + "'], tls: {enabled: true, insecure_skip_verify: true}}"}, ""},
		{"S3 not by TLS with an unknown authority", source{file: "redis: {addresses: ['" + secured + "'], tls: {enabled: true}}"}, "unknown authority"},
		{"S3 not by TLS with another name", source{file: "redis: {addresses: ['" + secured + "'], tls: {enabled: true, ca_file: " + certificate + ", server_name: other}}"}, "match other"},
		{"not without the right password", source{file: "redis: {addresses: ['" + server.Addr + "']}", env: []string{"STOWAGE_REDIS__PASSWORD=" + password}}, "WRONGPASS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := tc.over(t, minimal+"  username: worker\n  password: swordfish\n").load(t)
			require.NoError(t, err)
			err = ping(t, c.Redis)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			requireNoPassword(t, err.Error())
		})
	}
}

func ping(t *testing.T, redis Redis) error {
	t.Helper()
	option, err := redis.ClientOption()
	require.NoError(t, err)
	client, err := rueidis.NewClient(option)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Do(t.Context(), client.B().Ping().Build()).Error()
}

// secure opens a second, secured port, adds the user and shuts the default one
// out. It returns the port's address.
func secure(t *testing.T, server *redistest.Server, certificate, key string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)

	client := server.Client(t)
	for _, command := range []string{
		"CONFIG SET tls-cert-file " + certificate + " tls-key-file " + key + " tls-ca-cert-file " + certificate + " tls-auth-clients optional tls-port " + port,
		"ACL SETUSER worker on >swordfish ~* +@all",
		"ACL SETUSER default off",
	} {
		require.NoError(t, client.Do(t.Context(), client.B().Arbitrary(strings.Fields(command)...).Build()).Error())
	}
	return address
}

// selfSigned writes a certificate for 127.0.0.1, its own authority, and its key.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	return writePEM(t, dir, "CERTIFICATE", der), writePEM(t, dir, "PRIVATE KEY", secret)
}

func writePEM(t *testing.T, dir, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(dir, strings.ReplaceAll(kind, " ", "-"))
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// A sentinel has users, and secured connections, of its own.
func TestClientOptionOfASentinel(t *testing.T) {
	t.Parallel()
	c, err := source{file: `
database: {url: "postgres://db/x"}
redis:
  username: worker
  password: one
  tls: {enabled: true}
  sentinel: {master_set: main, addresses: ["s1:26379", "s2:26379"], username: watcher, password: two}
`}.load(t)
	require.NoError(t, err)
	option, err := c.Redis.ClientOption()
	require.NoError(t, err)
	require.Equal(t, []string{"s1:26379", "s2:26379"}, option.InitAddress)
	require.Equal(t, []string{"worker", "one"}, []string{option.Username, option.Password})
	require.Equal(t, "main", option.Sentinel.MasterSet)
	require.Equal(t, []string{"watcher", "two"}, []string{option.Sentinel.Username, option.Sentinel.Password})
	require.NotNil(t, option.TLSConfig)
	require.NotNil(t, option.Sentinel.TLSConfig)
}
