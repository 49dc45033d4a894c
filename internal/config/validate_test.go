package config

import (
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"github.com/stretchr/testify/require"
)

// TestInvalid holds one mistake a case: each is refused, by its path, and
// nothing else is.
func TestInvalid(t *testing.T) {
	t.Parallel()
	empty := write(t, "\n")
	for _, tc := range []struct {
		name string
		source
		want string
	}{
		{"AC32 an unknown setting", source{file: "drain: {intervall: 1s}"}, "drain.intervall: no setting has this name (in "},
		{"AC32 an unknown section", source{file: "drains: {}"}, "drains: no setting has this name (in "},
		{"AC32 a value in place of a section", source{file: "drain: 5"}, "drain: is a section, not a setting (in "},
		{"AC32 a section in place of a value", source{file: "drain: {interval: {seconds: 1}}"}, "drain.interval: a section is no duration: "},
		{"AC32 an unknown variable", source{env: []string{"STOWAGE_DRAIN_INTERVAL=1s"}}, "STOWAGE_DRAIN_INTERVAL: no setting has this variable"},
		{"AC32 a setting without value", source{file: "drain: {interval: }"}, "drain.interval: nothing is no duration: "},
		{"AC32 a duration without unit", source{file: "drain: {interval: 10}"}, `drain.interval: "10" is no duration: `},
		{"AC32 a malformed number", source{env: []string{"STOWAGE_DRAIN__WORKERS=two"}}, `drain.workers: "two" is no whole number`},
		{"AC32 a malformed bool", source{args: []string{"--redis-tls-enabled=perhaps"}}, `redis.tls.enabled: "perhaps" is neither true nor false`},
		{"AC32 a malformed level", source{file: "log: {level: loud}"}, `log.level: "loud" is no level: `},
		{"AC32 an unknown format", source{file: "log: {format: xml}"}, `log.format: "xml" is neither text nor json`},
		{"AC32 a malformed list", source{file: "redis: {sentinel: {addresses: 5}}"}, "redis.sentinel.addresses: is no list: "},
		{"AC32 a malformed item of a list", source{file: "redis: {sentinel: {addresses: [5]}}"}, "redis.sentinel.addresses: item 1 is no text: "},
		{"AC32 a number in place of a text", source{file: "redis: {username: 007}"}, `redis.username: "7" is no text: put it in quotes`},
		{"AC32 a structure in place of a text", source{file: "redis: {username: [a]}"}, `redis.username: a list is no text: `},

		{"AC32 no pass allowed", source{file: "reconciliation: {max_in_flight: 0}"}, "reconciliation.max_in_flight: 0 is below 1"},
		{"AC32 too many passes", source{file: "reconciliation: {max_in_flight: 1001}"}, "reconciliation.max_in_flight: 1001 is above 1000"},
		{"AC32 no drain allowed", source{file: "drain: {workers: 0}"}, "drain.workers: 0 is below 1"},
		{"AC32 an empty chunk", source{file: "drain: {chunk_size: 0}"}, "drain.chunk_size: 0 is below 1"},
		{"AC32 a chunk that blocks Redis", source{file: "drain: {chunk_size: 5001}"}, "drain.chunk_size: 5001 is above 5000"},
		{"AC32 a guard that holds every correction", source{file: "reconciliation: {guard: {percent: 0}}"}, "reconciliation.guard.percent: 0 is below 1"},
		{"AC32 a share of more than all", source{file: "reconciliation: {guard: {percent: 101}}"}, "reconciliation.guard.percent: 101 is above 100"},
		{"AC32 a guard without a size in bytes", source{file: "reconciliation: {guard: {bytes: 0}}"}, "reconciliation.guard.bytes: 0 is below 1"},
		{"AC32 a size with a unit", source{file: "reconciliation: {guard: {bytes: 1GiB}}"}, `reconciliation.guard.bytes: "1GiB" is no whole number`},
		{"AC32 a guard without a size in components", source{file: "reconciliation: {guard: {components: -1}}"}, "reconciliation.guard.components: -1 is below 1"},
		{"AC32 a guard that confirms at once", source{file: "reconciliation: {guard: {confirm_after: 0s}}"}, "reconciliation.guard.confirm_after: 0s is below 1ms"},
		{"AC32 an empty write-back", source{file: "reconciliation: {write_back_chunk: -1}"}, "reconciliation.write_back_chunk: -1 is below 1"},
		{"AC32 a pool of less than nothing", source{file: "database: {max_connections: -1}"}, "database.max_connections: -1 is below 0"},
		{"AC32 a tick without pause", source{file: "drain: {interval: 1ms}"}, "drain.interval: 1ms is below 100ms"},
		{"AC32 a negative grace", source{file: "collect: {grace: -1s}"}, "collect.grace: -1s is below 0s"},
		{"AC32 a walk without pause", source{file: "collect: {interval: 1ms}"}, "collect.interval: 1ms is below 100ms"},
		{"AC32 an empty batch", source{file: "collect: {batch_size: 0}"}, "collect.batch_size: 0 is below 1"},
		{"AC32 a batch that holds too many locks", source{file: "collect: {batch_size: 10001}"}, "collect.batch_size: 10001 is above 10000"},
		{"AC32 a history of less than a day", source{file: "history: {retention: 23h}"}, "history.retention: 23h0m0s is below 24h0m0s"},
		{"AC32 a negative history", source{file: "history: {retention: -1h}"}, "history.retention: -1h0m0s is below 24h0m0s"},
		{"AC32 no time to stop", source{file: "shutdown: {timeout: 0s}"}, "shutdown.timeout: 0s is below 1ms"},
		{"AC32 a negative staleness", source{file: "reconciliation: {staleness: -1h}"}, "reconciliation.staleness: -1h0m0s is below 1ms"},

		{"AC32 a buffer that lives shorter than ten times the staleness", source{file: "buffer: {ttl: 239h59m59s}"}, "buffer.ttl: 239h59m59s is shorter than ten times reconciliation.staleness (24h)"},
		{"AC32 a tick as long as a job may be late", source{file: "drain: {interval: 1m}"}, "drain.interval: 1m is not shorter than drain.stale_timeout (1m)"},
		{"AC32 a job that is canceled before it is stale", source{file: "drain: {stale_timeout: 2m1s}"}, "drain.stale_timeout: 2m1s is longer than drain.job_timeout (2m)"},
		{"AC32 a lease shorter than a claim may take", source{file: "drain: {lease: 4999ms}"}, "drain.lease: 4.999s is shorter than buffer.claim_timeout (5s)"},
		{"AC32 a pool one too small", source{file: "database: {max_connections: 26}"}, "database.max_connections: 26 is below 27: 3 for each of reconciliation.max_in_flight (4), 1 for each of drain.workers (4) and 11 for everything else"},
		{"AC32 a retention of twice the buffer's life", source{file: "ledger: {retention: 480h}"}, "ledger.retention: 480h is not longer than twice buffer.ttl (240h)"},
		{"AC32 a retention of twice the longest pass", source{file: "reconciliation: {job_timeout: 360h}"}, "ledger.retention: 720h is not longer than twice reconciliation.job_timeout (360h)"},

		{"AC32 no database", source{file: "database: {url: ''}"}, "database.url: is not set: "},
		{"AC32 a database URL of another kind", source{file: "database: {url: 'mysql://db/x'}"}, "database.url: is no PostgreSQL URL "},
		{"AC32 S3 a database URL whose password ends at a slash", source{file: "database: {url: 'postgres://app:1/2@db/x'}"}, "database.url: is no PostgreSQL URL "},
		{"AC32 an unknown sslmode", source{file: "database: {url: 'postgres://db/x?sslmode=maybe'}"}, "database.url: is no PostgreSQL URL "},
		{"AC32 a pool size in the URL", source{file: "database: {url: 'postgres://db/x?pool_max_conns=99'}"}, "database.url: sets pool_max_conns, "},
		{"AC32 a secret and its file", source{env: []string{"STOWAGE_DATABASE__URL_FILE=" + empty}}, "database.url_file: database.url is set too: "},
		{"AC32 an empty secret file", source{env: []string{"STOWAGE_REDIS__PASSWORD_FILE=" + empty}}, "redis.password: redis.password_file: " + empty + " is empty"},
		{"AC32 a missing secret file", source{env: []string{"STOWAGE_REDIS__PASSWORD_FILE=/nowhere"}}, "redis.password: redis.password_file: open /nowhere: no such file"},

		{"AC32 no Redis", source{env: []string{"STOWAGE_REDIS__ADDRESSES="}}, "redis.addresses: is not set: "},
		{"AC32 Redis without port", source{file: "redis: {addresses: [redis]}"}, "redis.addresses: item 1 is no host:port "},
		{"AC32 a user without password", source{file: "redis: {username: worker}"}, "redis.username: needs a password: "},
		{"AC32 sentinels without master set", source{file: "redis: {sentinel: {addresses: ['s:1']}}"}, "redis.sentinel.master_set: is not set, "},
		{"AC32 a master set beside addresses", source{file: "redis: {sentinel: {master_set: m, addresses: ['s:1']}}"}, "redis.addresses: is set together with redis.sentinel.master_set: "},
		{"AC32 a master set without sentinels", source{file: "redis: {sentinel: {master_set: m}}", env: []string{"STOWAGE_REDIS__ADDRESSES="}}, "redis.sentinel.addresses: is not set: "},
		{"AC32 a sentinel user without password", source{file: "redis: {sentinel: {master_set: m, addresses: ['s:1'], username: u}}", env: []string{"STOWAGE_REDIS__ADDRESSES="}}, "redis.sentinel.username: needs a password: "},
		{"AC32 S3 TLS settings without TLS", source{file: "redis: {tls: {server_name: r}}"}, "redis.tls.enabled: is false, but "},
		{"AC32 S3 a verification that verifies nothing", source{file: "redis: {tls: {enabled: true, insecure_skip_verify: true, server_name: r}}"}, "redis.tls.insecure_skip_verify: is true, so "},
		{"AC32 a certificate without key", source{file: "redis: {tls: {enabled: true, cert_file: /x}}"}, "redis.tls.cert_file: goes with redis.tls.key_file: "},
		{"AC32 missing authorities", source{file: "redis: {tls: {enabled: true, ca_file: /nowhere}}"}, "redis.tls: ca_file: open /nowhere: no such file"},
		{"AC32 authorities that are none", source{env: []string{"STOWAGE_REDIS__TLS__ENABLED=true", "STOWAGE_REDIS__TLS__CA_FILE=" + empty}}, "redis.tls: ca_file: " + empty + " holds no certificate"},
		{"AC32 a missing certificate", source{file: "redis: {tls: {enabled: true, cert_file: /nowhere, key_file: /nowhere}}"}, "redis.tls: cert_file, key_file: open /nowhere: no such file"},

		{"AC32 an admin address without port", source{file: "admin: {listen: localhost}"}, `admin.listen: "localhost" is no host:port`},
		{"AC32 an admin port that is none", source{file: "admin: {listen: 'localhost:http'}"}, `admin.listen: "localhost:http" is no host:port`},
		{"AC32 S3 the admin server beyond loopback without token", source{file: "admin: {listen: ':9180'}"}, `admin.listen: ":9180" can be reached from other machines: `},
		{"AC32 S3 an admin token that can be guessed", source{file: "admin: {token: 15-characters--}"}, "admin.token: is shorter than 16 characters: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := tc.over(t, minimal).load(t)
			require.Error(t, err)
			require.True(t, strings.HasPrefix(err.Error(), tc.want), "%v", err)
			require.NotContains(t, err.Error(), "\n", "one mistake, one error")
		})
	}
}

// over puts the source's file on top of a valid one.
func (s source) over(t *testing.T, base string) source {
	t.Helper()
	k := koanf.New(delimiter)
	for _, text := range []string{base, s.file} {
		values, err := yaml.Parser().Unmarshal([]byte(text))
		require.NoError(t, err)
		require.NoError(t, k.Load(confmap.Provider(values, ""), nil))
	}
	file, err := k.Marshal(yaml.Parser())
	require.NoError(t, err)
	s.file = string(file)
	return s
}

func TestAC32AllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := source{
		file: "drain: {interval: soon, chunk: 5}\nreconciliation: {max_in_flight: 0}\nadmin: {listen: ':1'}\n",
		env:  []string{"STOWAGE_DRIAN__LEASE=1s", "STOWAGE_BUFFER__TTL=1h"},
		args: []string{"--drain-lease=1s", "--database-max-connections=1"},
	}.load(t)
	require.Error(t, err)
	var paths []string
	for line := range strings.Lines(err.Error()) {
		path, _, _ := strings.Cut(line, ": ")
		paths = append(paths, path)
	}
	require.ElementsMatch(t, []string{
		"drain.chunk", "STOWAGE_DRIAN__LEASE", "drain.interval", "database.url", "redis.addresses",
		"admin.listen", "reconciliation.max_in_flight", "buffer.ttl", "drain.lease",
	}, paths, "and none that only follows from another: %v", err)
}

func TestUnreadableFileIsNamed(t *testing.T) {
	t.Parallel()
	_, err := source{env: []string{"STOWAGE_CONFIG=/nowhere/stowage.yaml"}}.load(t)
	require.ErrorContains(t, err, "/nowhere/stowage.yaml: open /nowhere/stowage.yaml: no such file or directory")
}

func TestWhatIsBarelyValid(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"ten times the staleness":    "buffer: {ttl: 240h}",
		"just shorter ticks":         "drain: {interval: 59999ms}",
		"stale as it is canceled":    "drain: {stale_timeout: 2m}",
		"a lease as long as a claim": "drain: {lease: 5s}",
		"just the pool":              "database: {max_connections: 27}",
		"just the retention":         "ledger: {retention: 480h1s}",
		"history for a day":          "history: {retention: 24h}",
		"history for ever":           "history: {retention: 0s}",
		"loopback without token":     "admin: {listen: '[::1]:0'}",
		"sections left empty":        "drain:\nlog: {}",
		"beyond loopback by token":   "admin: {listen: ':9180', token: 16-characters---}",
		"a cluster with TLS":         "redis: {addresses: ['a:1', 'b:2'], tls: {enabled: true}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := source{file: file}.over(t, minimal).load(t)
			require.NoError(t, err)
		})
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	warned := func(file string) []string {
		c, err := source{file: file}.over(t, minimal).load(t)
		require.NoError(t, err)
		return c.Warnings()
	}
	require.Equal(t, []string{"redis.tls.insecure_skip_verify: whoever answers in place of Redis is trusted"},
		warned("redis: {tls: {enabled: true, insecure_skip_verify: true}, password: p}"))
	require.Equal(t, []string{"redis.tls.enabled: false, so the password crosses the network in the clear"},
		warned("redis: {addresses: ['127.0.0.1:1', 'redis:2'], password: p}"))
	require.Empty(t, warned("redis: {password: p}"), "loopback is not the network")
	require.Empty(t, warned("redis: {addresses: ['redis:2'], tls: {enabled: true}, password: p}"))
}
