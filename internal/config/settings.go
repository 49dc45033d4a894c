package config

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// setting is one value of the configuration: where it is found in the file,
// where it goes, and its sentence, which flags and README.md show.
type setting struct {
	path   string
	target any
	help   string
}

// settings are all settings of c. Every source, check and print goes through
// this list.
func (c *Config) settings() []setting {
	return []setting{
		{"database.url", &c.Database.URL, "PostgreSQL, as postgres://user:password@host:5432/database; required. As a flag it shows in the process list."},
		{"database.url_file", &c.Database.URLFile, "File that holds database.url."},
		{"database.max_connections", &c.Database.MaxConnections, "Connections of this process at most; 0 takes what the other settings need."},
		{"redis.addresses", &c.Redis.Addresses, "Redis, as host:port; several, or one that says it is part of a cluster, are a cluster's seeds. Required without a sentinel."},
		{"redis.username", &c.Redis.Username, "User of Redis' access control list; empty is the default user."},
		{"redis.password", &c.Redis.Password, "Password of that user; empty sends none."},
		{"redis.password_file", &c.Redis.PasswordFile, "File that holds redis.password."},
		{"redis.tls.enabled", &c.Redis.TLS.Enabled, "Whether to speak TLS to Redis and its sentinels."},
		{"redis.tls.ca_file", &c.Redis.TLS.CAFile, "PEM file of the authorities to trust; empty trusts the system's."},
		{"redis.tls.cert_file", &c.Redis.TLS.CertFile, "PEM file of the client certificate; empty presents none."},
		{"redis.tls.key_file", &c.Redis.TLS.KeyFile, "PEM file of the key of redis.tls.cert_file."},
		{"redis.tls.server_name", &c.Redis.TLS.ServerName, "Name that the certificate must carry; empty takes the host of the address."},
		{"redis.tls.insecure_skip_verify", &c.Redis.TLS.InsecureSkipVerify, "Whether to trust any certificate; warned of at each start."},
		{"redis.sentinel.master_set", &c.Redis.Sentinel.MasterSet, "Name of the master set to ask the sentinels for; empty uses no sentinel."},
		{"redis.sentinel.addresses", &c.Redis.Sentinel.Addresses, "Sentinels, as host:port."},
		{"redis.sentinel.username", &c.Redis.Sentinel.Username, "User of the sentinels' access control list; empty is the default user."},
		{"redis.sentinel.password", &c.Redis.Sentinel.Password, "Password of that user; empty sends none."},
		{"redis.sentinel.password_file", &c.Redis.Sentinel.PasswordFile, "File that holds redis.sentinel.password."},
		{"buffer.ttl", &c.Buffer.TTL, "Life of a scope's buffer after its last change; at least ten times reconciliation.staleness."},
		{"buffer.claim_timeout", &c.Buffer.ClaimTimeout, "Time that one claim of a chunk may take."},
		{"drain.interval", &c.Drain.Interval, "Time between two ticks: how far counters lag behind."},
		{"drain.chunk_size", &c.Drain.ChunkSize, "Scopes that one claim takes; Redis serves nobody else meanwhile, for about 10 microseconds each."},
		{"drain.stale_timeout", &c.Drain.StaleTimeout, "Age at which a drain job gives way to the next tick's; longer than drain.interval."},
		{"drain.job_timeout", &c.Drain.JobTimeout, "Time after which a drain job is canceled; at least drain.stale_timeout."},
		{"drain.lease", &c.Drain.Lease, "Time that a bucket stays with a drain after its last claim, and so with a killed one; at least buffer.claim_timeout."},
		{"drain.workers", &c.Drain.Workers, "Buckets that this process drains at once."},
		{"reconciliation.max_in_flight", &c.Reconciliation.MaxInFlight, "Passes that run at once in the whole cluster."},
		{"reconciliation.staleness", &c.Reconciliation.Staleness, "Age at which a namespace is reconciled again: how long an unnoticed error can live."},
		{"reconciliation.interval", &c.Reconciliation.Interval, "Time between two looks for namespaces to reconcile."},
		{"reconciliation.job_timeout", &c.Reconciliation.JobTimeout, "Time that one pass may take."},
		{"reconciliation.write_back_chunk", &c.Reconciliation.WriteBackChunk, "Rows that a pass locks and writes at once."},
		{"reconciliation.guard.percent", &c.Reconciliation.Guard.Percent, "A correction that lowers a counter by more than this share of it, and by more than the size that follows, is held; 100 holds none."},
		{"reconciliation.guard.bytes", &c.Reconciliation.Guard.Bytes, "The size of such a correction, in bytes."},
		{"reconciliation.guard.components", &c.Reconciliation.Guard.Components, "The size of such a correction, in components."},
		{"reconciliation.guard.confirm_after", &c.Reconciliation.Guard.ConfirmAfter, "Time after which a pass that finds the correction still, writes it; stowage namespace approve does not wait for it."},
		{"ledger.retention", &c.Ledger.Retention, "Time that applied flushes are remembered; longer than twice buffer.ttl and twice reconciliation.job_timeout."},
		{"collect.grace", &c.Collect.Grace, "Time that a blob is left alone after it was stored, and its content after the blob was removed; 0 only where blobs are never put ahead of their version."},
		{"collect.interval", &c.Collect.Interval, "Time between the end of a walk over all blobs, for those that nothing refers to, and the next."},
		{"collect.batch_size", &c.Collect.BatchSize, "Blobs that one transaction of the walk looks at."},
		{"history.retention", &c.History.Retention, "Time that the hourly usage of namespaces is kept after its hour; 0 keeps it forever, else at least 24h."},
		{"admin.listen", &c.Admin.Listen, "Address of /metrics, /healthz and /readyz; port 0 takes a free one."},
		{"admin.token", &c.Admin.Token, "Bearer token for all but /healthz; empty asks for none, which only loopback may."},
		{"admin.token_file", &c.Admin.TokenFile, "File that holds admin.token."},
		{"log.level", &c.Log.Level, "Least level that is logged: debug, info, warn or error."},
		{"log.format", &c.Log.Format, "Form of a line: text or json."},
		{"telemetry.otlp_endpoint", &c.Telemetry.OTLPEndpoint, "Collector that spans are sent to by OTLP over HTTP, as http://host:4318; empty makes none."},
		{"shutdown.timeout", &c.Shutdown.Timeout, "Time that running jobs get to end before they are canceled."},
	}
}

// flag is the name of the setting's flag, or empty: a secret has none, because
// every user of the machine can read the arguments of a process. The URL of the
// database is exempt, since it need not hold a password.
func (s setting) flag() string {
	if _, secret := s.target.(*Secret); secret && s.path != "database.url" {
		return ""
	}
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.path)
}

// variable is the name of the setting's environment variable.
func (s setting) variable() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.path, ".", "__"))
}

// kind is the name of the setting's type, for people.
func (s setting) kind() string {
	switch s.target.(type) {
	case *time.Duration:
		return "duration"
	case *int:
		return "number"
	case *bool:
		return "bool"
	case *[]string:
		return "list"
	case *slog.Level:
		return "level"
	case *Secret:
		return "secret"
	default:
		return "text"
	}
}

// set parses a value as a source gave it: a text, or what YAML made of it.
func (s setting) set(value any) error {
	switch target := s.target.(type) {
	case *Secret:
		text, isText := value.(string)
		if !isText {
			return errors.New("is no text (its value is withheld): put it in quotes")
		}
		*target = NewSecret(text)
		return nil
	case *string:
		text, isText := value.(string)
		if !isText {
			return fmt.Errorf("%s is no text: put it in quotes", shown(value))
		}
		*target = text
		return nil
	case *[]string:
		return setList(target, value)
	default:
		return setScalar(target, value)
	}
}

func setScalar(target, value any) error {
	var err error
	text := fmt.Sprint(value)
	switch target := target.(type) {
	case *time.Duration:
		if *target, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%s is no duration: write a number and a unit, such as 500ms, 10s, 15m or 24h", shown(value))
		}
	case *int:
		if *target, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%s is no whole number", shown(value))
		}
	case *bool:
		if *target, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%s is neither true nor false", shown(value))
		}
	case *slog.Level:
		if err = target.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("%s is no level: write debug, info, warn or error", shown(value))
		}
	default:
		panic(fmt.Sprintf("a setting of type %T cannot be read", target))
	}
	return nil
}

// setList takes a YAML list, or a text whose items stand between commas.
func setList(target *[]string, value any) error {
	switch value := value.(type) {
	case string:
		*target = nil
		for item := range strings.SplitSeq(value, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*target = append(*target, item)
			}
		}
		return nil
	case []any:
		*target = nil
		for i, item := range value {
			text, isText := item.(string)
			if !isText {
				return fmt.Errorf("item %d is no text: put it in quotes", i+1)
			}
			*target = append(*target, text)
		}
		return nil
	default:
		return errors.New("is no list: write [a, b], or a,b in a variable or flag")
	}
}

// shown is a value as an error may show it. What is not a plain value is only
// named: anything could be inside.
func shown(value any) string {
	switch value := value.(type) {
	case nil:
		return "nothing"
	case string, int, int64, uint64, float64, bool:
		return fmt.Sprintf("%q", fmt.Sprint(value))
	case map[string]any:
		return "a section"
	case []any:
		return "a list"
	default:
		return fmt.Sprintf("a %T", value)
	}
}

// get is the setting's value as the dump and the help show it: what set takes,
// but for secrets.
func (s setting) get() any {
	switch target := s.target.(type) {
	case *time.Duration:
		return short(*target)
	case *int:
		return *target
	case *bool:
		return *target
	case *[]string:
		return append([]string{}, *target...)
	case *slog.Level:
		return strings.ToLower(target.String())
	case *Secret:
		return target.String()
	case *string:
		return *target
	default:
		panic(fmt.Sprintf("a setting of type %T cannot be shown", target))
	}
}

// short is the duration without the zeros at its end: 24h, not 24h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// AddFlags declares --config and a flag for every setting but the secrets.
func AddFlags(flags *pflag.FlagSet) {
	addFlags(flags, func(setting) bool { return true })
}

// AddDatabaseFlags declares --config and what tells where the database is, for
// commands that need no more.
func AddDatabaseFlags(flags *pflag.FlagSet) {
	addFlags(flags, func(s setting) bool { return strings.HasPrefix(s.path, "database.url") })
}

// AddStoreFlags declares --config and what LoadStores reads.
func AddStoreFlags(flags *pflag.FlagSet) {
	addFlags(flags, func(s setting) bool {
		return strings.HasPrefix(s.path, "database.url") || strings.HasPrefix(s.path, "redis.") || s.path == "buffer.ttl"
	})
}

func addFlags(flags *pflag.FlagSet, wanted func(setting) bool) {
	flags.String(configFlag, "", "YAML file with settings.")
	for _, s := range Default().settings() {
		if name := s.flag(); name != "" && wanted(s) {
			flag := flags.VarPF(&flagText{text: s.defaultText(), kind: s.kind()}, name, "", s.help)
			if s.kind() == "bool" {
				flag.NoOptDefVal = "true"
			}
		}
	}
}

func (s setting) defaultText() string {
	if list, isList := s.get().([]string); isList {
		return strings.Join(list, ",")
	}
	return fmt.Sprint(s.get())
}

// flagText is a flag that takes any text, so that a malformed value is reported
// with all other mistakes and not alone.
type flagText struct{ text, kind string }

func (f *flagText) Set(text string) error { f.text = text; return nil }
func (f *flagText) String() string        { return f.text }
func (f *flagText) Type() string          { return f.kind }
