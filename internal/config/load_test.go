package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// minimal is the least that is valid.
const minimal = `
database:
  url: postgres://app:hunter2hunter2hunter2@db:5432/stowage
redis:
  addresses: ["127.0.0.1:6379"]
`

// source is what a test configures by.
type source struct {
	file string // content; empty is no file
	env  []string
	args []string
}

func (s source) load(t *testing.T) (*Config, error) {
	t.Helper()
	return Load(s.prepare(t, AddFlags))
}

func (s source) prepare(t *testing.T, add func(*pflag.FlagSet)) (*pflag.FlagSet, []string) {
	t.Helper()
	flags := pflag.NewFlagSet("stowage", pflag.ContinueOnError)
	add(flags)
	args := s.args
	if s.file != "" {
		args = append([]string{"--config", write(t, s.file)}, args...)
	}
	require.NoError(t, flags.Parse(args))
	return flags, append([]string{"HOME=/", "STOWAGE_TEST_DATABASE_URL=x"}, s.env...)
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestMinimalConfigurationTakesTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := source{file: minimal}.load(t)
	require.NoError(t, err)
	want := Default()
	want.Database.URL = NewSecret("postgres://app:hunter2hunter2hunter2@db:5432/stowage")
	want.Database.MaxConnections = 3*4 + 4 + 11
	want.Redis.Addresses = []string{"127.0.0.1:6379"}
	require.Equal(t, want, c)
	require.Empty(t, c.Warnings())
}

// everything sets each setting to something else than its default. The secrets
// are set here, so their files are not.
const everything = `
database:
  url: postgres://app@db:5432/stowage
  max_connections: 99
redis:
  addresses: [redis-1:6379, redis-2:6379]
  username: worker
  password: hunter2
  tls:
    enabled: true
    server_name: redis.example
buffer:
  ttl: 500h
  claim_timeout: 3s
drain:
  interval: 2s
  chunk_size: 250
  stale_timeout: 21s
  job_timeout: 22s
  lease: 23s
  workers: 7
reconciliation:
  max_in_flight: 9
  staleness: 48h
  interval: 25s
  job_timeout: 26m
  write_back_chunk: 300
  guard:
    percent: 60
    bytes: 5000
    components: 70
    confirm_after: 2h
ledger:
  retention: 1100h
history:
  retention: 100h
collect:
  grace: 2h
  interval: 3h
  batch_size: 77
admin:
  listen: 0.0.0.0:9999
  token: hunter2hunter2hunter2
log:
  level: debug
  format: json
telemetry:
  otlp_endpoint: https://collector:4318
shutdown:
  timeout: 1m30s
`

// elsewhere are the settings that everything cannot hold beside the others.
var elsewhere = []string{
	"database.url_file", "redis.password_file", "admin.token_file",
	"redis.tls.ca_file", "redis.tls.cert_file", "redis.tls.key_file", "redis.tls.insecure_skip_verify",
	"redis.sentinel.master_set", "redis.sentinel.addresses", "redis.sentinel.username",
	"redis.sentinel.password", "redis.sentinel.password_file",
}

// sources splits everything into an environment, and into flags with an
// environment for the secrets, which have no flags.
func sources(t *testing.T) (env, args, secrets []string) {
	t.Helper()
	c, err := source{file: everything}.load(t)
	require.NoError(t, err)
	for _, s := range c.settings() {
		text := s.defaultText()
		if secret, isSecret := s.target.(*Secret); isSecret {
			text = secret.Reveal()
		}
		env = append(env, s.variable()+"="+text)
		if s.flag() == "" {
			secrets = append(secrets, s.variable()+"="+text)
		} else {
			args = append(args, "--"+s.flag()+"="+text)
		}
	}
	return env, args, secrets
}

func TestEverySettingComesFromEverySource(t *testing.T) {
	t.Parallel()
	fromFile, err := source{file: everything}.load(t)
	require.NoError(t, err)
	defaults := make(map[string]any)
	for _, s := range Default().settings() {
		defaults[s.path] = s.get()
	}
	for _, path := range elsewhere {
		delete(defaults, path)
	}
	for _, s := range fromFile.settings() {
		if value, expected := defaults[s.path]; expected {
			require.NotEqual(t, value, s.get(), "%s: set it in everything to something new", s.path)
		}
	}

	env, args, secrets := sources(t)
	fromEnv, err := source{env: env}.load(t)
	require.NoError(t, err)
	require.Equal(t, fromFile, fromEnv)
	fromArgs, err := source{args: args, env: secrets}.load(t)
	require.NoError(t, err)
	require.Equal(t, fromFile, fromArgs)
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	s := source{
		file: minimal + "drain: {interval: 1s, chunk_size: 1, workers: 1}\n",
		env:  []string{"STOWAGE_DRAIN__CHUNK_SIZE=2", "STOWAGE_DRAIN__WORKERS=2"},
		args: []string{"--drain-workers=3"},
	}
	c, err := s.load(t)
	require.NoError(t, err)
	require.Equal(t, time.Second, c.Drain.Interval)
	require.Equal(t, 2, c.Drain.ChunkSize, "the environment overrides the file")
	require.Equal(t, 3, c.Drain.Workers, "flags override both")
}

func TestFileIsNamedByFlagOrVariable(t *testing.T) {
	t.Parallel()
	byVariable := write(t, minimal+"drain: {workers: 5}\n")
	c, err := source{env: []string{"STOWAGE_CONFIG=" + byVariable}}.load(t)
	require.NoError(t, err)
	require.Equal(t, 5, c.Drain.Workers)

	c, err = source{file: minimal + "drain: {workers: 6}\n", env: []string{"STOWAGE_CONFIG=" + byVariable}}.load(t)
	require.NoError(t, err)
	require.Equal(t, 6, c.Drain.Workers, "the flag wins")
}

func TestSecretsComeFromFiles(t *testing.T) {
	t.Parallel()
	c, err := source{file: `
database: {url_file: ` + write(t, "postgres://app:a%20b@db/stowage\n") + `}
redis:
  password_file: ` + write(t, "one\r\n") + `
  sentinel: {master_set: main, addresses: ["127.0.0.1:1"], password_file: ` + write(t, "two") + `}
admin: {token_file: ` + write(t, "hunter2hunter2hunter2\n") + `}
`}.load(t)
	require.NoError(t, err)
	require.Equal(t, "postgres://app:a%20b@db/stowage", c.Database.URL.Reveal())
	require.Equal(t, "one", c.Redis.Password.Reveal())
	require.Equal(t, "two", c.Redis.Sentinel.Password.Reveal())
	require.Equal(t, "hunter2hunter2hunter2", c.Admin.Token.Reveal())
}

func TestLoadDatabaseNeedsNothingElse(t *testing.T) {
	t.Parallel()
	s := source{
		env:  []string{"STOWAGE_REDIS__PASSWORD_FILE=/nowhere", "STOWAGE_DRAIN__INTERVAL=24h"},
		args: []string{"--database-url=postgres://app@db/stowage"},
	}
	d, err := LoadDatabase(s.prepare(t, AddDatabaseFlags))
	require.NoError(t, err)
	require.Equal(t, "postgres://app@db/stowage", d.URL.Reveal())

	_, err = LoadDatabase(source{}.prepare(t, AddDatabaseFlags))
	require.EqualError(t, err, "database.url: is not set: give it in the file, as STOWAGE_DATABASE__URL, as --database-url, or in a file named by database.url_file")
}

func TestLoadStoresNeedsNothingElse(t *testing.T) {
	t.Parallel()
	s := source{
		env:  []string{"STOWAGE_ADMIN__TOKEN_FILE=/nowhere", "STOWAGE_DRAIN__INTERVAL=24h"},
		args: []string{"--database-url=postgres://app@db/stowage", "--redis-addresses=cache:6379", "--buffer-ttl=1h"},
	}
	c, err := LoadStores(s.prepare(t, AddStoreFlags))
	require.NoError(t, err)
	require.Equal(t, []string{"cache:6379"}, c.Redis.Addresses)
	require.Equal(t, time.Hour, c.Buffer.TTL)

	_, err = LoadStores(source{args: []string{"--buffer-ttl=0s"}}.prepare(t, AddStoreFlags))
	for _, path := range []string{"database.url", "redis.addresses", "buffer.ttl"} {
		require.ErrorContains(t, err, path)
	}
}

func TestDatabaseFlagsAreNoMoreThanNeeded(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("stowage", pflag.ContinueOnError)
	AddDatabaseFlags(flags)
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	require.Equal(t, []string{"config", "database-url", "database-url-file"}, names)
}

func TestBoolFlagNeedsNoValue(t *testing.T) {
	t.Parallel()
	c, err := source{file: minimal, args: []string{"--redis-tls-enabled"}}.load(t)
	require.NoError(t, err)
	require.True(t, c.Redis.TLS.Enabled)
}

func TestDumpLoadsAgain(t *testing.T) {
	t.Parallel()
	c, err := source{file: minimal + "log: {level: warn}\n"}.load(t)
	require.NoError(t, err)
	text, err := c.Dump()
	require.NoError(t, err)
	require.Contains(t, text, "interval: 10s\n")
	require.Contains(t, text, "url: '[redacted]'\n")

	again, err := source{
		file: text, env: []string{"STOWAGE_DATABASE__URL=" + c.Database.URL.Reveal()},
	}.load(t)
	require.NoError(t, err)
	require.Equal(t, c, again)
}

// The table in README.md is what Default and settings say.
func TestReadmeListsEverySetting(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for _, s := range Default().settings() {
		value := s.defaultText()
		if value != "" {
			value = "`" + value + "`"
		}
		table.WriteString("| `" + s.path + "` | " + s.kind() + " | " + value + " | " + s.help + " |\n")
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	if !strings.Contains(string(readme), table.String()) {
		require.Fail(t, "put this into README.md", table.String())
	}
}
