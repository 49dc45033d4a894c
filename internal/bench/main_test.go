package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

func TestWrongFlagsAreRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"--rounds 0":          "--rounds 0: want 1 or more",
		"--scale 0":           "--scale 0: want more than 0 and at most 1",
		"--scale 1.5":         "--scale 1.5: want more than 0 and at most 1",
		"--only P4,Q":         "--only Q: there is no such measure; there are " + ids(measures()),
		"--only P":            "--only P: there is no such measure; there are " + ids(measures()),
		"--rounds x":          `invalid argument "x" for "--rounds"`,
		"--fast":              "unknown flag: --fast",
		"P4":                  `unknown command "P4" for "bench"`,
		"--out /dev/null/out": "mkdir /dev/null: not a directory",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			cmd := command()
			cmd.SetArgs(strings.Fields(args))
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			require.ErrorContains(t, cmd.ExecuteContext(t.Context()), says)
		})
	}
}

func TestOnlyChoosesByIdAndByRequirement(t *testing.T) {
	t.Parallel()
	all := ids(measures())
	for only, want := range map[string]string{
		"":               all,
		"P4":             "P4-update, P4-asynq",
		"p4-UPDATE":      "P4-update",
		"P1":             "P1",
		"P6,P3":          "P3, P6",
		"P4,P4-asynq,p4": "P4-update, P4-asynq",
	} {
		opts := options{rounds: 1, scale: 1}
		if only != "" {
			opts.only = strings.Split(only, ",")
		}
		chosen, err := opts.choose()
		require.NoError(t, err)
		require.Equal(t, want, ids(chosen), only)
	}
}

// Each requirement of the report has its row, and no two rows one id.
func TestEveryRequirementIsMeasured(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, m := range measures() {
		require.False(t, seen[m.ID], m.ID)
		seen[m.ID] = true
		require.NotEmpty(t, m.What, m.ID)
		require.NotEmpty(t, m.Unit, m.ID)
		require.Positive(t, m.Want.Value, m.ID)
	}
	for _, p := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10"} {
		chosen, err := options{rounds: 1, scale: 1, only: []string{p}}.choose()
		require.NoError(t, err)
		require.NotEmpty(t, chosen)
	}
}

// small is a run with the servers that are installed here, and nothing of its own.
func small(t *testing.T) options {
	t.Helper()
	return options{rounds: 1, scale: 0.01, out: filepath.Join(t.TempDir(), "deep", "out")}
}

// counting measures how many namespaces there are, and hands out its pool.
func counting(pools chan<- *pgxpool.Pool) measure {
	return measure{ID: "P0", What: "namespaces", Unit: "namespaces", Want: atMost(0), prepare: func(ctx context.Context, l *lab) (sides, error) {
		pool, err := l.newDatabase(ctx, 1)
		if err != nil {
			return sides{}, err
		}
		pools <- pool
		redis, err := l.redis(ctx)
		if err != nil {
			return sides{}, err
		}
		return sides{ours: func(ctx context.Context) (n float64, _ error) {
			if err := redis.Do(ctx, redis.B().Ping().Build()).Error(); err != nil {
				return 0, err
			}
			return n, pool.QueryRow(ctx, `SELECT count(*) FROM namespaces`).Scan(&n)
		}}, nil
	}}
}

func TestRun(t *testing.T) {
	t.Parallel()
	pools := make(chan *pgxpool.Pool, 2)
	opts := small(t)
	opts.cpuProfile = filepath.Join(t.TempDir(), "cpu")
	var out bytes.Buffer
	require.NoError(t, opts.run(t.Context(), &out, []measure{counting(pools), counting(pools)}))

	report, err := os.ReadFile(filepath.Join(opts.out, "report.md"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(report), "| P0 | namespaces |  | 0 | - | namespaces | 0 | 0 | 0 | ≤ 0 | met |"))
	require.Regexp(t, `PostgreSQL \d+\.\d+.*, Redis \d+\.\d+\.\d+, go1\.\d+.*; commit [0-9a-f]+`, string(report))
	require.FileExists(t, filepath.Join(opts.out, "report.json"))
	require.Contains(t, out.String(), "written to "+opts.out)
	require.NotContains(t, out.String(), "missed")
	first, second := <-pools, <-pools
	require.NotEqual(t, first.Config().ConnConfig.Database, second.Config().ConnConfig.Database, "each has a database of its own")
	profile, err := os.Stat(opts.cpuProfile)
	require.NoError(t, err)
	require.Positive(t, profile.Size())
}

func TestAMissedFigureIsNoFailure(t *testing.T) {
	t.Parallel()
	opts := small(t)
	m := measure{ID: "P0", Want: atMost(1), prepare: prepared(sides{ours: func(context.Context) (float64, error) { return 2, nil }})}
	var out bytes.Buffer
	require.NoError(t, opts.run(t.Context(), &out, []measure{m}))
	require.Contains(t, out.String(), "missed: P0\n")
}

func TestAFailedOrInterruptedRunWritesNothingAndEndsItsServers(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, fail := range map[string]func(cancel context.CancelFunc) error{
		"failed":      func(context.CancelFunc) error { return broken },
		"interrupted": func(cancel context.CancelFunc) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pools := make(chan *pgxpool.Pool, 1)
			m := counting(pools)
			prepare := m.prepare
			m.prepare = func(ctx context.Context, l *lab) (sides, error) {
				s, err := prepare(ctx, l)
				return s, errors.Join(err, fail(cancel))
			}
			opts := small(t)
			err := opts.run(ctx, io.Discard, []measure{m})
			require.ErrorContains(t, err, "P0: ")
			if name == "failed" {
				require.ErrorIs(t, err, broken)
			} else {
				require.ErrorIs(t, err, context.Canceled)
			}
			files, err := os.ReadDir(opts.out)
			require.NoError(t, err)
			require.Empty(t, files)
			closed := <-pools
			_, err = pgxpool.New(context.Background(), closed.Config().ConnString())
			require.NoError(t, err)
			require.Error(t, closed.Ping(context.Background()))
		})
	}
}
