package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// Migration is one file of the directory, or one that the database knows.
type Migration struct {
	// Version is the time in its file's name, as yyyymmddhhmmss.
	Version string
	// Description is the rest of its file's name.
	Description string
	// AppliedAt is when it was applied, zero when it was not.
	AppliedAt time.Time
	// Failed says how far it came and what stopped it, when it runs without a
	// transaction and was left half done; else it is empty.
	Failed string
}

// State is how far a database is, compared with this build.
type State struct {
	// Applied are the migrations that the database has in full, oldest first,
	// those of a newer build included.
	Applied []Migration
	// Pending are those that this build has and the database lacks.
	Pending []Migration
}

// Current is the newest applied version, empty when there is none.
func (s State) Current() string {
	if len(s.Applied) == 0 {
		return ""
	}
	return s.Applied[len(s.Applied)-1].Version
}

// Latest is the newest version that this build has.
func Latest() (string, error) {
	dir, err := directory()
	if err != nil {
		return "", err
	}
	all, err := dir.Files()
	if err != nil {
		return "", err
	}
	return all[len(all)-1].Version(), nil
}

// Status reads how far the database is. It writes nothing, and a database that
// was never migrated is no error: everything is pending.
func Status(ctx context.Context, pool *pgxpool.Pool) (State, error) {
	dir, err := directory()
	if err != nil {
		return State{}, err
	}
	return status(ctx, pool, dir)
}

func status(ctx context.Context, pool *pgxpool.Pool, dir atlas.Dir) (State, error) {
	revs, err := readRevisions(ctx, pool)
	if err != nil {
		return State{}, err
	}
	return state(dir, revs)
}

func state(dir atlas.Dir, revs []*atlas.Revision) (State, error) {
	all, err := dir.Files()
	if err != nil {
		return State{}, err
	}
	var s State
	halfDone := map[string]string{}
	for _, rev := range revs {
		if complete(rev) {
			s.Applied = append(s.Applied, Migration{Version: rev.Version, Description: rev.Description, AppliedAt: rev.ExecutedAt})
		} else {
			halfDone[rev.Version] = failed(rev)
		}
	}
	for _, file := range all {
		if !slices.ContainsFunc(s.Applied, func(m Migration) bool { return m.Version == file.Version() }) {
			s.Pending = append(s.Pending, Migration{Version: file.Version(), Description: file.Desc(), Failed: halfDone[file.Version()]})
		}
	}
	return s, nil
}

// complete does not look at the error: the open CLI leaves it in the record of a
// migration that failed half way and was finished later.
func complete(rev *atlas.Revision) bool {
	return rev.Applied == rev.Total
}

func failed(rev *atlas.Revision) string {
	done := fmt.Sprintf("%d of %d statements are applied", rev.Applied, rev.Total)
	if rev.Error == "" {
		return done // it was killed
	}
	return done + ", then: " + rev.Error
}

func readRevisions(ctx context.Context, pool *pgxpool.Pool) (revs []*atlas.Revision, err error) {
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	exist, err := revisionsExist(ctx, db)
	if err != nil || !exist {
		return nil, err
	}
	return revisions{db}.ReadRevisions(ctx)
}

// waitInterval is how often WaitFor looks.
const waitInterval = time.Second

// WaitFor returns once the database has the version, which may be one that only
// a newer build knows. Empty means this build's newest. It ends with ctx, then
// saying how far the database was.
func WaitFor(ctx context.Context, pool *pgxpool.Pool, version string) error {
	if version == "" {
		latest, err := Latest()
		if err != nil {
			return err
		}
		version = latest
	}
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	var s State
	for {
		read, err := Status(ctx, pool)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for migration %s: the database is at %q; run stowage migrate apply: %w", version, s.Current(), context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("waiting for migration %s: %w", version, err)
		}
		s = read
		if slices.ContainsFunc(s.Applied, func(m Migration) bool { return m.Version == version }) {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}
