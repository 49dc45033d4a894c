package drain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, DefaultConfig().Validate())

	err := Config{StaleTimeout: -1, JobTimeout: -2}.Validate()
	for _, field := range []string{"interval", "stale_timeout", "job_timeout", "chunk_size", "claim_timeout", "ledger_retention"} {
		require.ErrorContains(t, err, field+": ", "all mistakes at once")
	}
	for field, mistake := range map[string]func(*Config){
		"stale_timeout": func(c *Config) { c.StaleTimeout = c.Interval },
		"job_timeout":   func(c *Config) { c.JobTimeout = c.StaleTimeout - time.Nanosecond },
		"chunk_size":    func(c *Config) { c.ChunkSize = 5001 },
	} {
		c := DefaultConfig()
		mistake(&c)
		require.ErrorContains(t, c.Validate(), field+": ")
	}
}
