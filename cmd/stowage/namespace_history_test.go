package main

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

// The shapes of history are what billing reads: a change to these files is a change
// of the interface.
func TestNamespaceHistory(t *testing.T) {
	t.Parallel()
	url := dbtest.NewURL(t)
	const id = "01980000-0000-7000-8000-000000000001"
	_, err := dbtest.Open(t, url).Exec(context.Background(), `
		INSERT INTO namespaces (id, slug) VALUES ('`+id+`', 'team');
		INSERT INTO usage_progress (id, since, hour, after_namespace_id, sealed, fence)
		VALUES (1, '2026-03-01', '2026-03-01 03:00Z', '00000000-0000-0000-0000-000000000000', '2026-03-01 03:00Z', '{}');
		INSERT INTO usage_hours (namespace_id, hour, bytes_start, components_start, bytes_end, components_end, peak_bytes, byte_seconds)
		VALUES ('`+id+`', '2026-03-01 01:00Z', 100, 1, 5000000, 2000, 6000000, 9000000000000000.000001);
		INSERT INTO usage_adjustments (namespace_id, applied_at, kind, batch_id, bytes, components)
		VALUES ('`+id+`', '2026-03-01 01:30:00.5Z', 1, '01980000-0000-7000-8000-000000000002', -1500, -3),
		       ('`+id+`', '2026-03-01 01:40Z', 2, '01980000-0000-7000-8000-000000000003', 2048, 1)`)
	require.NoError(t, err)
	historyOf := func(name string, args ...string) (stdout string, err error) {
		stdout, _, err = run(t, append([]string{"namespace", "history", name, "--database-url", url}, args...)...)
		return stdout, err
	}

	for _, format := range []string{"table", "csv", "json"} {
		t.Run("as "+format, func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile("testdata/history." + format)
			require.NoError(t, err)
			got, err := historyOf("team", "--from", "2026-03-01", "--format", format)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
	t.Run("by the id, in a range, with a time zone", func(t *testing.T) {
		t.Parallel()
		got, err := historyOf(id, "--from", "2026-03-01T04:00:00+02:00", "--to", "2026-03-01T03:00:00Z", "--format", "csv")
		require.NoError(t, err)
		require.Equal(t, "namespace_id,hour,line,bytes,components,byte_seconds,peak_bytes,applied_at,batch_id\n"+
			id+",2026-03-01T02:00:00Z,usage,5000000,2000,18000000000.000000,5000000,,\n", got)
	})
	t.Run("says which hours there are, in CSV on stderr", func(t *testing.T) {
		t.Parallel()
		_, stderr, err := run(t, "namespace", "history", id, "--database-url", url, "--from", "2026-02-01", "--to", "2026-04-01", "--format", "csv")
		require.NoError(t, err)
		require.Equal(t, "history has the hours from 2026-03-01T00:00:00Z to 2026-03-01T03:00:00Z; later ones are open\n", stderr)
	})
	t.Run("before the first hour is closed", func(t *testing.T) {
		t.Parallel()
		fresh := dbtest.NewURL(t)
		pool := dbtest.Open(t, fresh)
		_, err := pool.Exec(context.Background(), `INSERT INTO namespaces (id, slug) VALUES ('`+id+`', 'team')`)
		require.NoError(t, err)
		read := func() string {
			out, _, err := run(t, "namespace", "history", "team", "--database-url", fresh, "--from", "2026-03-01")
			require.NoError(t, err)
			return out
		}
		require.Equal(t, "no worker has begun to keep history\n", read())
		_, err = pool.Exec(context.Background(), `
			INSERT INTO usage_progress (id, since, hour, after_namespace_id, sealed, fence)
			VALUES (1, '2026-03-01', '2026-03-01', '00000000-0000-0000-0000-000000000000', '2026-03-01', '{}')`)
		require.NoError(t, err)
		require.Equal(t, "the first hour of history, from 2026-03-01T00:00:00Z on, is not closed yet\n", read())
	})
	t.Run("of a deleted namespace by its id", func(t *testing.T) {
		t.Parallel()
		const gone = "01980000-0000-7000-8000-000000000009"
		_, err := dbtest.Open(t, url).Exec(context.Background(), `
			INSERT INTO usage_hours (namespace_id, hour, bytes_start, components_start, bytes_end, components_end, peak_bytes, byte_seconds)
			VALUES ('`+gone+`', '2026-03-01 01:00Z', 0, 0, 0, 0, 0, 0)`)
		require.NoError(t, err)
		_, err = historyOf(gone, "--from", "2026-03-01")
		require.NoError(t, err)
	})
	for name, c := range map[string]struct {
		args []string
		want string
		call bool
	}{
		"an unknown slug":         {[]string{"nobody", "--from", "2026-03-01"}, `namespace "nobody"`, false},
		"an unknown id":           {[]string{"01980000-0000-7000-8000-0000000000ff", "--from", "2026-03-01"}, "no history of one", false},
		"no beginning":            {[]string{"team"}, `--from ""`, true},
		"no time":                 {[]string{"team", "--from", "2026-03-01", "--to", "tomorrow"}, `--to "tomorrow"`, true},
		"an end at the beginning": {[]string{"team", "--from", "2026-03-01", "--to", "2026-03-01"}, "is not before", true},
		"a part of an hour":       {[]string{"team", "--from", "2026-03-01T00:30:00Z"}, "within an hour of UTC", true},
		"an unknown format":       {[]string{"team", "--from", "2026-03-01", "--format", "xml"}, `--format "xml"`, true},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			_, err := historyOf(c.args[0], c.args[1:]...)
			require.ErrorContains(t, err, c.want)
			var call usageError
			require.Equal(t, c.call, errors.As(err, &call))
		})
	}
}
