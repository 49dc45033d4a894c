// Package config is the configuration of Stowage's commands: from a YAML file,
// the environment and flags, checked as a whole. README.md lists every setting.
package config

import (
	"log/slog"
	"time"
)

// Config is the configuration of `stowage worker`, of which other commands read
// a part. What each setting means, with its special values, is said once, in
// settings.
type Config struct {
	Database       Database
	Redis          Redis
	Buffer         Buffer
	Drain          Drain
	Reconciliation Reconciliation
	Ledger         Ledger
	Collect        Collect
	History        History
	Admin          Admin
	Log            Log
	Telemetry      Telemetry
	Shutdown       Shutdown
}

// Database is where PostgreSQL is. It is all that `stowage migrate` needs.
type Database struct {
	URL            Secret
	URLFile        string
	MaxConnections int
}

// Redis is where the buffers are.
type Redis struct {
	Addresses    []string
	Username     string
	Password     Secret
	PasswordFile string
	TLS          TLS
	Sentinel     Sentinel
}

// TLS is how connections to Redis and its sentinels are secured.
type TLS struct {
	Enabled            bool
	CAFile             string
	CertFile           string
	KeyFile            string
	ServerName         string
	InsecureSkipVerify bool
}

// Sentinel finds the primary of a master set.
type Sentinel struct {
	MasterSet    string
	Addresses    []string
	Username     string
	Password     Secret
	PasswordFile string
}

// Buffer is how long things in Redis live.
type Buffer struct {
	TTL          time.Duration
	ClaimTimeout time.Duration
}

// Drain is how buffers are applied.
type Drain struct {
	Interval     time.Duration
	ChunkSize    int
	StaleTimeout time.Duration
	JobTimeout   time.Duration
	Lease        time.Duration
	Workers      int
}

// Reconciliation is how counters are recomputed.
type Reconciliation struct {
	MaxInFlight    int
	Staleness      time.Duration
	Interval       time.Duration
	JobTimeout     time.Duration
	WriteBackChunk int
	Guard          Guard
}

// Guard is which corrections are too large to be written at once.
type Guard struct {
	Percent      int
	Bytes        int
	Components   int
	ConfirmAfter time.Duration
}

// Ledger is how long the record of what was applied is kept.
type Ledger struct {
	Retention time.Duration
}

// Collect is how blobs are removed that nothing refers to.
type Collect struct {
	Grace     time.Duration
	Interval  time.Duration
	BatchSize int
}

// History is how long the hourly usage of namespaces is kept.
type History struct {
	Retention time.Duration
}

// Admin is the server of metrics and health.
type Admin struct {
	Listen    string
	Token     Secret
	TokenFile string
}

// Log is what is logged, to standard error.
type Log struct {
	Level  slog.Level
	Format string
}

// Telemetry is where spans are sent.
type Telemetry struct {
	OTLPEndpoint string
}

// Shutdown is how a process ends.
type Shutdown struct {
	Timeout time.Duration
}

// Default is the configuration in which nothing was set. It is not valid:
// where PostgreSQL and Redis are has no default.
func Default() *Config {
	return &Config{
		Buffer: Buffer{TTL: 10 * day, ClaimTimeout: 5 * time.Second},
		Drain: Drain{
			Interval:     10 * time.Second,
			ChunkSize:    500,
			StaleTimeout: time.Minute,
			JobTimeout:   2 * time.Minute,
			Lease:        15 * time.Second,
			Workers:      4,
		},
		Reconciliation: Reconciliation{
			MaxInFlight:    4,
			Staleness:      day,
			Interval:       15 * time.Second,
			JobTimeout:     15 * time.Minute,
			WriteBackChunk: 200,
			Guard:          Guard{Percent: 50, Bytes: 1 << 30, Components: 1000, ConfirmAfter: time.Hour},
		},
		Ledger:   Ledger{Retention: 30 * day},
		Collect:  Collect{Grace: day, Interval: day, BatchSize: 1000},
		History:  History{Retention: 400 * day},
		Admin:    Admin{Listen: "127.0.0.1:9180"},
		Log:      Log{Format: "text"},
		Shutdown: Shutdown{Timeout: 30 * time.Second},
	}
}

const day = 24 * time.Hour

// Warnings are settings that are allowed, but that nobody should use without
// being told: log them at start.
func (c *Config) Warnings() []string {
	var warnings []string
	if c.Redis.TLS.InsecureSkipVerify {
		warnings = append(warnings, "redis.tls.insecure_skip_verify: whoever answers in place of Redis is trusted")
	}
	if c.Redis.sendsPasswordInTheClear() {
		warnings = append(warnings, "redis.tls.enabled: false, so the password crosses the network in the clear")
	}
	return warnings
}
