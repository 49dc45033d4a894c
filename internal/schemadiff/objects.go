package schemadiff

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/migrate"
)

type objectName struct{ kind, name string }

func declaredObjects(ctx context.Context, pool *pgxpool.Pool) (map[objectName]string, error) {
	objects, err := migrate.Objects(ctx, pool, "public")
	if err != nil {
		return nil, err
	}
	found := map[objectName]string{}
	for _, o := range objects {
		found[objectName{o.Kind, o.Name}] = o.Definition
	}
	return found, nil
}

// makes are the statements for objects of a kind that are new or differ.
func makes(before, after map[objectName]string, kind string) (changes []*atlas.Change) {
	for _, name := range sorted(after, kind) {
		if after[name] == before[name] {
			continue
		}
		statement := strings.TrimSuffix(after[name], ";")
		if _, stands := before[name]; stands {
			statement = strings.Replace(statement, "CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1)
		}
		changes = append(changes, &atlas.Change{Cmd: statement})
	}
	return changes
}

// drops are the statements for objects of a kind that are declared no more.
func drops(before, after map[objectName]string, kind string) (changes []*atlas.Change) {
	for _, name := range sorted(before, kind) {
		if _, declared := after[name]; declared {
			continue
		}
		statement := "DROP " + strings.ToUpper(kind) + " " + name.name
		if kind == "trigger" {
			statement += triggerTable.FindStringSubmatch(before[name])[1]
		}
		changes = append(changes, &atlas.Change{Cmd: statement})
	}
	return changes
}

// triggerTable finds the table that a trigger stands on in its definition.
var triggerTable = regexp.MustCompile(`( ON \S+) FOR EACH`)

func sorted(objects map[objectName]string, kind string) []objectName {
	names := slices.Collect(maps.Keys(objects))
	names = slices.DeleteFunc(names, func(n objectName) bool { return n.kind != kind })
	slices.SortFunc(names, func(a, b objectName) int { return strings.Compare(a.name, b.name) })
	return names
}
