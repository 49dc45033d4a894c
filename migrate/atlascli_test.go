package migrate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

// The tests of this file and of atlashcl_test.go are named TestAtlasCLI: that
// release of the CLI knows no PostgreSQL after 15, so make migrate/matrix leaves
// them out.

// cliBinary is the open Atlas CLI.
func cliBinary(t *testing.T) string {
	t.Helper()
	binary, err := filepath.Abs("../bin/atlas")
	require.NoError(t, err)
	require.FileExists(t, binary, "the Atlas CLI is not built: run make bin/atlas, which make test does")
	return binary
}

// call runs it. The error holds what it said.
func call(cmd *osexec.Cmd) (output string, err error) {
	// Else it asks its maker for a newer release.
	cmd.Env = append(cmd.Environ(), "ATLAS_NO_UPDATE_NOTIFIER=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

// shared is one database under both tools, with one directory of migrations,
// which the CLI reads from the disk.
type shared struct {
	binary, url, path string
	pool              *pgxpool.Pool
	dir               atlas.Dir
}

func newShared(t *testing.T, dir atlas.Dir) shared {
	t.Helper()
	url := dbtest.NewEmptyURL(t)
	return shared{binary: cliBinary(t), url: url, pool: dbtest.Open(t, url)}.with(t, dir)
}

// with is the same database under another directory.
func (s shared) with(t *testing.T, dir atlas.Dir) shared {
	t.Helper()
	s.dir, s.path = dir, t.TempDir()
	local, err := atlas.NewLocalDir(s.path)
	require.NoError(t, err)
	files, err := dir.Files()
	require.NoError(t, err)
	for _, file := range files {
		require.NoError(t, local.WriteFile(file.Name(), file.Bytes()))
	}
	sum, err := dir.Checksum()
	require.NoError(t, err)
	require.NoError(t, atlas.WriteSumFile(local, sum))
	return s
}

// cli runs a command of "atlas migrate".
func (s shared) cli(ctx context.Context, name string, args ...string) (output string, err error) {
	args = append([]string{"migrate", name, "--dir", "file://" + s.path, "--url", s.url}, args...)
	return call(osexec.CommandContext(ctx, s.binary, args...))
}

// tool applies some of the pending migrations, or all when n is 0.
type tool func(ctx context.Context, s shared, n int) error

func withCLI(ctx context.Context, s shared, n int) error {
	var args []string
	if n > 0 {
		args = append(args, strconv.Itoa(n))
	}
	_, err := s.cli(ctx, "apply", args...)
	return err
}

func withOurs(ctx context.Context, s shared, n int) error {
	opts := migrate.Options{LockTimeout: time.Minute} // the CLI is slow to begin
	if n > 0 {
		state, err := migrate.StatusDir(ctx, s.pool, s.dir)
		if err != nil {
			return err
		}
		opts.To = state.Pending[n-1].Version
	}
	return migrate.ApplyDir(ctx, s.pool, s.dir, opts)
}

var tools = map[string]tool{"the CLI": withCLI, "stowage": withOurs}

// requireAgreement requires that both tell the same of the database, which is
// what the CLI told.
func (s shared) requireAgreement(t *testing.T) (cli cliStatus) {
	t.Helper()
	output, err := s.cli(bounded(t), "status", "--format", "{{ json . }}")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(output), &cli), output)

	ours, err := migrate.StatusDir(t.Context(), s.pool, s.dir)
	require.NoError(t, err)
	pending := make([]string, len(ours.Pending))
	for i, m := range ours.Pending {
		pending[i] = m.Version
	}
	theirs := make([]string, len(cli.Pending))
	for i, file := range cli.Pending {
		theirs[i] = file.Version
	}
	require.Equal(t, theirs, pending)
	require.Equal(t, cli.Error != "", len(pending) > 0 && ours.Pending[0].Failed != "", "one of both tells of a failure: %q, %v", cli.Error, ours.Pending)
	if cli.Error != "" {
		require.Equal(t, fmt.Sprintf("%d of %d statements are applied, then: %s", cli.Count, cli.Total, cli.Error), ours.Pending[0].Failed)
	} else if len(ours.Applied) > 0 {
		require.Equal(t, cli.Current, ours.Current())
	}
	return cli
}

// cliStatus is what the CLI says as JSON.
type cliStatus struct {
	Pending      []struct{ Version string }
	Current      string
	Error        string
	Count, Total int
}

func embedded(t *testing.T) atlas.Dir {
	t.Helper()
	dir, err := migrate.Load(directory, "migrations")
	require.NoError(t, err)
	return dir
}

func TestAtlasCLITakesTurns(t *testing.T) {
	t.Parallel()
	type turn struct {
		apply tool
		files int
	}
	for name, turns := range map[string][]turn{
		"the CLI begins and stowage ends": {{withCLI, 3}, {withOurs, 0}, {withCLI, 0}},
		"stowage begins and the CLI ends": {{withOurs, 1}, {withCLI, 2}, {withOurs, 1}, {withCLI, 0}, {withOurs, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShared(t, embedded(t))
			for _, turn := range turns {
				require.NoError(t, turn.apply(bounded(t), s, turn.files))
				s.requireAgreement(t)
			}
			require.NoError(t, migrate.Verify(t.Context(), s.pool))
		})
	}
}

func TestAtlasCLIKeepsTheSameRecord(t *testing.T) {
	t.Parallel()
	columns := map[string][]string{}
	rows := map[string][]string{}
	for name, apply := range tools {
		s := newShared(t, embedded(t))
		require.NoError(t, apply(bounded(t), s, 0))
		columns[name] = values[string](t, s.pool, `SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), attnum = ANY (conkey)) FROM pg_attribute
			LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum LEFT JOIN pg_constraint ON conrelid = attrelid
			WHERE attrelid = 'public.atlas_schema_revisions'::regclass AND attnum > 0 ORDER BY attnum`)
		rows[name] = values[string](t, s.pool, `SELECT concat_ws(' ', version, description, type, applied, total, error, error_stmt, hash) FROM public.atlas_schema_revisions ORDER BY version`)
	}
	require.NotEmpty(t, rows["stowage"])
	require.Equal(t, columns["the CLI"], columns["stowage"])
	require.Equal(t, rows["the CLI"], rows["stowage"])
}

const (
	cliLocks = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_advisory_lock(%' AND wait_event_type = 'Lock'"
	cliWaits = "SELECT count(*) = 1 " + cliLocks
)

func TestAtlasCLIWaits(t *testing.T) {
	t.Parallel()
	dir := newDir(t, map[string]string{"1_a.sql": "CREATE TABLE b (id int);", "2_b.sql": "ALTER TABLE a ADD COLUMN b int;"})
	for name, tc := range map[string]struct {
		first, second tool
		waiting       string
	}{
		"for stowage":                {withOurs, withCLI, cliWaits},
		"and is what stowage awaits": {withCLI, withOurs, "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_try_advisory_lock(%'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShared(t, dir)
			exec(t, s.pool, "CREATE TABLE a (id int)")
			// The CLI begins on an empty database only.
			require.NoError(t, withOurs(bounded(t), s, 1))
			hold, _ := holder(t, s.pool, "LOCK TABLE a")
			ctx := bounded(t)
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- tc.first(ctx, s, 0) }()
			requireSoon(t, s.pool, "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'a'::regclass AND NOT granted")
			go func() { second <- tc.second(ctx, s, 0) }()
			requireSoon(t, s.pool, tc.waiting)
			require.NoError(t, hold.Rollback(t.Context()))
			require.NoError(t, <-first)
			require.NoError(t, <-second)
			s.requireAgreement(t)
			require.NoError(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir))
		})
	}
}

// A CREATE INDEX CONCURRENTLY waits for every older statement of the database,
// and so for that in which the CLI waits for the lock of the migrators.
func TestAtlasCLIThatWaitsDoesNotBreakAConcurrentIndex(t *testing.T) {
	t.Parallel()
	s := newShared(t, newDir(t, map[string]string{
		"1_a.sql": "CREATE TABLE a (id int);",
		"2_b.sql": "-- atlas:txmode none\n\nCREATE INDEX CONCURRENTLY index_a ON a (id);",
	}))
	ctx := bounded(t)
	applied, proceed, told := make(chan struct{}), make(chan struct{}), false
	// Longer than the server takes to see a deadlock.
	opts := migrate.Options{LockTimeout: 3 * time.Second, Logger: onRecord(func(record string) {
		switch {
		case strings.Contains(record, "version=1 "):
			close(applied)
			<-proceed
		case strings.Contains(record, "tried again"):
			told = true
			// It would go on when the CLI gives up, too.
			_, _ = s.pool.Exec(ctx, "SELECT pg_terminate_backend(pid) "+cliLocks)
		}
	})}
	ours, theirs := make(chan error, 1), make(chan error, 1)
	go func() { ours <- migrate.ApplyDir(ctx, s.pool, s.dir, opts) }()
	select {
	case <-applied:
	case err := <-ours:
		require.NoError(t, err)
	}
	go func() {
		_, err := s.cli(ctx, "apply", "--lock-timeout", "10m")
		theirs <- err
	}()
	// The server looks for a deadlock once in each wait, after a second. Ours is to
	// be the one that finds it.
	requireSoon(t, s.pool, "SELECT count(*) = 1 AND min(clock_timestamp() - query_start) > '1.5 s' "+cliLocks)
	close(proceed)

	require.NoError(t, <-ours)
	require.True(t, told, "the index must have waited for the CLI")
	require.ErrorContains(t, <-theirs, "acquiring database lock")
	require.True(t, value[bool](t, s.pool, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'index_a'::regclass"))
	s.requireAgreement(t)
}

func TestAtlasCLIFinishesWhatFailed(t *testing.T) {
	t.Parallel()
	const (
		begin = "-- Two statements.\nCREATE TABLE b (id int);\n\n-- With a reason; and a semicolon.\nINSERT INTO b\n-- inside\nVALUES (1);\n"
		fails = "INSERT INTO missing VALUES (1);\nINSERT INTO b VALUES (2);\n"
	)
	for mode, file := range map[string]string{"in a transaction": begin + fails, "without a transaction": "-- atlas:txmode none\n\n" + begin + fails} {
		for failing, first := range tools {
			for finishing, second := range tools {
				if finishing == failing {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s fails and %s finishes", mode, failing, finishing), func(t *testing.T) {
					t.Parallel()
					s := newShared(t, newDir(t, map[string]string{"1_a.sql": "CREATE TABLE a (id int);", "2_b.sql": file}))
					require.ErrorContains(t, first(bounded(t), s, 0), `relation "missing" does not exist`)
					status := s.requireAgreement(t)
					require.Equal(t, strings.Contains(file, "txmode"), status.Error != "")
					require.ErrorContains(t, second(bounded(t), s, 0), `relation "missing" does not exist`)
					require.Equal(t, status.Count, s.requireAgreement(t).Count)
					require.ErrorContains(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir), "migration 2 (b) is not applied")

					exec(t, s.pool, "CREATE TABLE missing (id int)")
					require.NoError(t, second(bounded(t), s, 0))
					require.Empty(t, s.requireAgreement(t).Pending)
					require.NoError(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir))
					require.NoError(t, first(bounded(t), s, 0))
					require.Equal(t, []int{1, 2}, values[int](t, s.pool, "SELECT id FROM b ORDER BY id"), "each statement ran once")
				})
			}
		}
	}
}

// A file that says nothing of transactions may be half done too, by a CLI that
// was told so.
func TestAtlasCLIWithoutTransactionsIsFinished(t *testing.T) {
	t.Parallel()
	s := newShared(t, newDir(t, map[string]string{"1_a.sql": "CREATE TABLE b (id int);\nINSERT INTO missing VALUES (1);"}))
	_, err := s.cli(bounded(t), "apply", "--tx-mode", "none")
	require.ErrorContains(t, err, `relation "missing" does not exist`)
	require.Equal(t, 1, s.requireAgreement(t).Count)
	exec(t, s.pool, "CREATE TABLE missing (id int)")
	require.NoError(t, withOurs(bounded(t), s, 0))
	require.Empty(t, s.requireAgreement(t).Pending)
	require.NoError(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir))
}

const (
	beginning    = "-- atlas:txmode none\n\nCREATE TABLE a (id int);\nCREATE TABLE b (id int);\n"
	halfDone     = beginning + "INSERT INTO missing VALUES (1);"
	mendedAsLong = beginning + "INSERT INTO b VALUES (1);"
)

func TestAtlasCLIWithAFileThatIsMended(t *testing.T) {
	t.Parallel()
	mended := map[string]string{
		"shorter": beginning,
		"as long": mendedAsLong,
		"longer":  mendedAsLong + "\nINSERT INTO b VALUES (2);",
	}
	for name, file := range mended {
		t.Run("its rest is "+name, func(t *testing.T) {
			t.Parallel()
			s := newShared(t, newDir(t, map[string]string{"1_a.sql": halfDone}))
			require.Error(t, withCLI(bounded(t), s, 0))
			s = s.with(t, newDir(t, map[string]string{"1_a.sql": file, "2_b.sql": "CREATE TABLE c (id int);"}))
			require.NoError(t, withOurs(bounded(t), s, 0))
			require.Empty(t, s.requireAgreement(t).Pending)
			require.NoError(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir))
		})
	}
	t.Run("fewer statements than ran are refused", func(t *testing.T) {
		t.Parallel()
		s := newShared(t, newDir(t, map[string]string{"1_a.sql": halfDone}))
		require.Error(t, withCLI(bounded(t), s, 0))
		s = s.with(t, newDir(t, map[string]string{"1_a.sql": "-- atlas:txmode none\n\nCREATE TABLE a (id int);"}))
		require.ErrorContains(t, withOurs(bounded(t), s, 0), "2 of its statements were applied, and now it has only 1")
	})
}

func TestAtlasCLIAndStowageRefuse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ before, after, says string }{
		"a changed statement of a file that is half done": {halfDone, strings.Replace(halfDone, "b (id", "b (n", 1), "history changed: statement 2"},
		"a file that is half done and gone":               {halfDone, "", "missing"},
	} {
		for failing, first := range tools {
			t.Run(failing+" left "+name, func(t *testing.T) {
				t.Parallel()
				s := newShared(t, newDir(t, map[string]string{"1_a.sql": tc.before}))
				require.Error(t, first(bounded(t), s, 0))
				after := map[string]string{"1_a.sql": tc.after}
				if tc.after == "" {
					after = map[string]string{"2_b.sql": "CREATE TABLE c (id int);"}
				}
				s = s.with(t, newDir(t, after))
				for name, apply := range tools {
					require.ErrorContains(t, apply(bounded(t), s, 0), tc.says, name)
				}
			})
		}
	}
	t.Run("a file that differs from its checksum", func(t *testing.T) {
		t.Parallel()
		s := newShared(t, newDir(t, map[string]string{"1_a.sql": "CREATE TABLE a (id int);"}))
		require.NoError(t, os.WriteFile(filepath.Join(s.path, "1_a.sql"), []byte("CREATE TABLE b (id int);"), 0o600))
		for _, command := range []string{"apply", "status"} {
			_, err := s.cli(bounded(t), command)
			require.ErrorContains(t, err, "checksum mismatch")
		}
		_, err := call(osexec.CommandContext(bounded(t), s.binary, "migrate", "validate", "--dir", "file://"+s.path))
		require.ErrorContains(t, err, "checksum mismatch")
		_, err = migrate.Load(os.DirFS(filepath.Dir(s.path)), filepath.Base(s.path))
		require.ErrorIs(t, err, atlas.ErrChecksumMismatch)
	})
}

// The CLI compares no checksum of what is applied, and does not see what it has
// not got: only stowage migrate verify tells.
func TestAtlasCLIAndWhatOnlyVerifyTells(t *testing.T) {
	t.Parallel()
	const a, b, c = "CREATE TABLE a (id int);", "CREATE TABLE b (id int);", "CREATE TABLE c (id int);"
	for name, tc := range map[string]struct {
		after map[string]string
		says  string
	}{
		"an applied file that was changed": {map[string]string{"1_a.sql": a, "2_b.sql": "CREATE TABLE b (n int);"}, "migration 2 (b) was applied with other content"},
		"a newer database":                 {map[string]string{"1_a.sql": a}, "migration 2 (b) is applied, but this build does not have it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShared(t, newDir(t, map[string]string{"1_a.sql": a, "2_b.sql": b}))
			require.NoError(t, withCLI(bounded(t), s, 0))
			s = s.with(t, newDir(t, tc.after))
			for _, apply := range tools {
				require.NoError(t, apply(bounded(t), s, 0))
			}
			require.Empty(t, s.requireAgreement(t).Pending)
			require.ErrorContains(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir), tc.says)
		})
	}
	t.Run("a file whose rest was mended, when the CLI finished it", func(t *testing.T) {
		t.Parallel()
		s := newShared(t, newDir(t, map[string]string{"1_a.sql": halfDone}))
		require.Error(t, withCLI(bounded(t), s, 0))
		s = s.with(t, newDir(t, map[string]string{"1_a.sql": mendedAsLong}))
		require.NoError(t, withCLI(bounded(t), s, 0))
		require.Empty(t, s.requireAgreement(t).Pending)
		require.ErrorContains(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir), "migration 1 (a) was applied with other content")
	})
	t.Run("a file that came in between, which stowage refuses too", func(t *testing.T) {
		t.Parallel()
		s := newShared(t, newDir(t, map[string]string{"1_a.sql": a, "3_c.sql": c}))
		require.NoError(t, withCLI(bounded(t), s, 0))
		s = s.with(t, newDir(t, map[string]string{"1_a.sql": a, "2_b.sql": b, "3_c.sql": c}))
		require.NoError(t, withCLI(bounded(t), s, 0))
		require.ErrorContains(t, withOurs(bounded(t), s, 0), "2_b.sql")
		require.ErrorContains(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir), "migration 2 (b) is not applied")
	})
}

// The official binary may mark the record with a row that is no migration.
func TestAtlasCLIAndItsIdentifier(t *testing.T) {
	t.Parallel()
	s := newShared(t, newDir(t, map[string]string{"1_a.sql": "CREATE TABLE a (id int);", "2_b.sql": "CREATE TABLE b (id int);"}))
	require.NoError(t, withOurs(bounded(t), s, 1))
	exec(t, s.pool, "INSERT INTO atlas_schema_revisions (version, description, executed_at, execution_time, hash, operator_version) VALUES ('.atlas_cloud_identifier', 'a uuid', now(), 0, '', 'Atlas CLI')")
	s.requireAgreement(t)
	require.NoError(t, withOurs(bounded(t), s, 0))
	require.NoError(t, withCLI(bounded(t), s, 0))
	s.requireAgreement(t)
	require.NoError(t, migrate.VerifyRecordDir(t.Context(), s.pool, s.dir))
}
