package config

import (
	"cmp"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/admin"
)

// Bounds of single settings.
const (
	minInterval       = 100 * time.Millisecond
	minTimeout        = time.Millisecond
	maxChunkSize      = 5000 // one claim then blocks Redis for about 50 ms
	maxWriteBackChunk = 5000
	maxCollectBatch   = 10_000
	maxParallel       = 1000
	maxConnections    = 10_000
	minTokenLength    = 16
)

// Connections that a worker needs. A pass holds three: its slot, its scan, and
// its mark or write-back; a drain holds one. The rest is for River (listener,
// fetching, completion, leadership, maintenance), the lock of the process that
// leads, the short periodic jobs, backfills and deletions, and the readiness check.
const (
	connectionsPerPass  = 3
	connectionsPerDrain = 1
	connectionsOfOthers = 11
)

func (c *Config) neededConnections() int {
	return connectionsPerPass*c.Reconciliation.MaxInFlight + connectionsPerDrain*c.Drain.Workers + connectionsOfOthers
}

func (c *Config) validate(p *problems) {
	c.validateDatabase(p)
	c.validateRedis(p)
	c.validateAdmin(p)
	c.validateTelemetry(p)
	c.validateValues(p)
	c.validateCombinations(p)
	if c.Database.MaxConnections == 0 {
		c.Database.MaxConnections = c.neededConnections()
	}
}

func (c *Config) validateValues(p *problems) {
	between(p, "database.max_connections", c.Database.MaxConnections, 0, maxConnections)
	atLeast(p, "buffer.ttl", c.Buffer.TTL, minTimeout)
	atLeast(p, "buffer.claim_timeout", c.Buffer.ClaimTimeout, minTimeout)
	atLeast(p, "drain.interval", c.Drain.Interval, minInterval)
	between(p, "drain.chunk_size", c.Drain.ChunkSize, 1, maxChunkSize)
	atLeast(p, "drain.stale_timeout", c.Drain.StaleTimeout, minTimeout)
	atLeast(p, "drain.job_timeout", c.Drain.JobTimeout, minTimeout)
	atLeast(p, "drain.lease", c.Drain.Lease, minTimeout)
	between(p, "drain.workers", c.Drain.Workers, 1, maxParallel)
	between(p, "reconciliation.max_in_flight", c.Reconciliation.MaxInFlight, 1, maxParallel)
	atLeast(p, "reconciliation.staleness", c.Reconciliation.Staleness, minTimeout)
	atLeast(p, "reconciliation.interval", c.Reconciliation.Interval, minInterval)
	atLeast(p, "reconciliation.job_timeout", c.Reconciliation.JobTimeout, minTimeout)
	between(p, "reconciliation.write_back_chunk", c.Reconciliation.WriteBackChunk, 1, maxWriteBackChunk)
	between(p, "reconciliation.guard.percent", c.Reconciliation.Guard.Percent, 1, 100)
	atLeast(p, "reconciliation.guard.bytes", c.Reconciliation.Guard.Bytes, 1)
	atLeast(p, "reconciliation.guard.components", c.Reconciliation.Guard.Components, 1)
	atLeast(p, "reconciliation.guard.confirm_after", c.Reconciliation.Guard.ConfirmAfter, minTimeout)
	atLeast(p, "ledger.retention", c.Ledger.Retention, minTimeout)
	atLeast(p, "collect.grace", c.Collect.Grace, 0)
	atLeast(p, "collect.interval", c.Collect.Interval, minInterval)
	between(p, "collect.batch_size", c.Collect.BatchSize, 1, maxCollectBatch)
	if p.sound("history.retention") && c.History.Retention != 0 {
		atLeast(p, "history.retention", c.History.Retention, day)
	}
	atLeast(p, "shutdown.timeout", c.Shutdown.Timeout, minTimeout)
	if c.Log.Format != "text" && c.Log.Format != "json" {
		p.refuseValue("log.format", "%q is neither text nor json", c.Log.Format)
	}
}

func atLeast[T cmp.Ordered](p *problems, path string, value, least T) {
	if p.sound(path) && value < least {
		p.refuseValue(path, "%v is below %v, the least it may be", value, least)
	}
}

func between[T cmp.Ordered](p *problems, path string, value, least, most T) {
	atLeast(p, path, value, least)
	if p.sound(path) && value > most {
		p.refuseValue(path, "%v is above %v, the most it may be", value, most)
	}
}

// validateCombinations refuses settings that are right alone and wrong
// together. It divides where it could multiply, since products may overflow.
func (c *Config) validateCombinations(p *problems) {
	if p.sound("buffer.ttl", "reconciliation.staleness") && c.Buffer.TTL/10 < c.Reconciliation.Staleness {
		p.refuse("buffer.ttl", "%s is shorter than ten times reconciliation.staleness (%s): buffers could expire before anything noticed that they are not drained",
			short(c.Buffer.TTL), short(c.Reconciliation.Staleness))
	}
	if p.sound("drain.interval", "drain.stale_timeout") && c.Drain.Interval >= c.Drain.StaleTimeout {
		p.refuse("drain.interval", "%s is not shorter than drain.stale_timeout (%s): a job would be stale before the next tick replaces it",
			short(c.Drain.Interval), short(c.Drain.StaleTimeout))
	}
	if p.sound("drain.stale_timeout", "drain.job_timeout") && c.Drain.StaleTimeout > c.Drain.JobTimeout {
		p.refuse("drain.stale_timeout", "%s is longer than drain.job_timeout (%s): a job would be canceled before it can give up in order",
			short(c.Drain.StaleTimeout), short(c.Drain.JobTimeout))
	}
	if p.sound("drain.lease", "buffer.claim_timeout") && c.Drain.Lease < c.Buffer.ClaimTimeout {
		p.refuse("drain.lease", "%s is shorter than buffer.claim_timeout (%s): the bucket would be given away while its drain still waits for a claim",
			short(c.Drain.Lease), short(c.Buffer.ClaimTimeout))
	}
	c.validateRetention(p)
	c.validatePool(p)
}

// validateRetention keeps half of the retention, after which a flush is too old
// to be applied, beyond what must still be found in the ledger.
func (c *Config) validateRetention(p *problems) {
	for _, life := range []struct {
		path  string
		value time.Duration
	}{
		{"buffer.ttl", c.Buffer.TTL},
		{"reconciliation.job_timeout", c.Reconciliation.JobTimeout},
	} {
		if p.sound("ledger.retention", life.path) && c.Ledger.Retention/2 <= life.value {
			p.refuse("ledger.retention", "%s is not longer than twice %s (%s): what was applied would be forgotten while it still counts",
				short(c.Ledger.Retention), life.path, short(life.value))
		}
	}
}

func (c *Config) validatePool(p *problems) {
	if !p.sound("database.max_connections", "reconciliation.max_in_flight", "drain.workers") || c.Database.MaxConnections == 0 {
		return
	}
	if needed := c.neededConnections(); c.Database.MaxConnections < needed {
		p.refuse("database.max_connections", "%d is below %d: %d for each of reconciliation.max_in_flight (%d), %d for each of drain.workers (%d) and %d for everything else; 0 takes what is needed",
			c.Database.MaxConnections, needed, connectionsPerPass, c.Reconciliation.MaxInFlight, connectionsPerDrain, c.Drain.Workers, connectionsOfOthers)
	}
}

// validateDatabase never repeats the URL, nor what the parser says of it: where
// a malformed URL's password begins and ends, nobody can tell.
func (c *Config) validateDatabase(p *problems) {
	const path = "database.url"
	readSecret(p, path, &c.Database.URL, c.Database.URLFile)
	if !p.sound(path) {
		return
	}
	if !c.Database.URL.IsSet() {
		p.refuseValue(path, "is not set: give it in the file, as STOWAGE_DATABASE__URL, as --database-url, or in a file named by database.url_file")
		return
	}
	if !isDatabaseURL(c.Database.URL.Reveal()) {
		p.refuseValue(path, "is no PostgreSQL URL (its text is withheld, it may hold a password): write postgres://user:password@host:5432/database, with special characters of the password percent-encoded, and check sslmode and the files it names")
		return
	}
	if strings.Contains(c.Database.URL.Reveal(), "pool_max_conns=") {
		p.refuse(path, "sets pool_max_conns, which would go past the check of database.max_connections: set that instead")
	}
}

// isDatabaseURL also refuses a URL in which a slash of the password has cut the
// user and the password off: what is left parses, with the rest of the password
// as the name of the database, which errors show.
func isDatabaseURL(text string) bool {
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return false
	}
	parsed, err := pgxpool.ParseConfig(text)
	return err == nil && !strings.Contains(parsed.ConnConfig.Database+parsed.ConnConfig.Host, "@")
}

func (c *Config) validateAdmin(p *problems) {
	readSecret(p, "admin.token", &c.Admin.Token, c.Admin.TokenFile)
	token := c.Admin.Token.Reveal()
	if token != "" && len(token) < minTokenLength {
		p.refuseValue("admin.token", "is shorter than %d characters: it could be guessed", minTokenLength)
	}
	if !p.sound("admin.listen") {
		return
	}
	if !isAddress(c.Admin.Listen) {
		p.refuseValue("admin.listen", "%q is no host:port", c.Admin.Listen)
		return
	}
	if p.sound("admin.token") && token == "" && !admin.IsLoopback(c.Admin.Listen) {
		p.refuse("admin.listen", "%q can be reached from other machines: set admin.token or admin.token_file, or listen on 127.0.0.1", c.Admin.Listen)
	}
}

// validateTelemetry does not repeat the URL, which may hold a password.
func (c *Config) validateTelemetry(p *problems) {
	const path = "telemetry.otlp_endpoint"
	if !p.sound(path) || c.Telemetry.OTLPEndpoint == "" {
		return
	}
	endpoint, err := url.Parse(c.Telemetry.OTLPEndpoint)
	if err != nil || (endpoint.Scheme != "http" && endpoint.Scheme != "https") || endpoint.Hostname() == "" || endpoint.RawQuery != "" {
		p.refuseValue(path, "is no URL of a collector: write http://host:4318 or https://host:4318")
		return
	}
	if endpoint.User != nil {
		p.refuseValue(path, "holds a user or a password, which would be shown: set OTEL_EXPORTER_OTLP_HEADERS in the environment instead")
	}
}

func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.ContainsAny(host, "@/ ") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
