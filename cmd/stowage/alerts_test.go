package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/alerts"
)

func TestAlerts(t *testing.T) {
	t.Parallel()
	out, _, err := run(t, "alerts")
	require.NoError(t, err)
	require.Equal(t, alerts.Rules, out)
	_, _, err = run(t, "alerts", "all")
	require.ErrorContains(t, err, `"all"`)
}

// registryExposition is what a registry exposes that has made one change.
func (s *services) registryExposition() string {
	s.t.Helper()
	ctx := context.Background()
	registry := prometheus.NewRegistry()
	db, err := entdb.New(entdb.Config{Pool: s.pool, Redis: s.redis.Client(s.t), Registerer: registry, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, db.Close(ctx)) }()
	namespace := db.Namespace.Create().SetSlug("alerts").SaveX(ctx).ID
	repository := db.Repository.Create().SetNamespaceID(namespace).SetName("r").SetFormat(schematype.FormatNPM).SetKind(schematype.KindHosted).SaveX(ctx).ID
	require.NoError(s.t, db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return tx.NPMVersion.Create().SetNamespaceID(namespace).SetRepositoryID(repository).SetName("x").SetVersion("1").SetSizeBytes(1).Exec(ctx)
	}))
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return response.Body.String()
}

// Each metric of the rules, and each label by which they select or group, is in
// what a running worker or a registry exposes.
func TestAC33RulesNameWhatIsExposed(t *testing.T) {
	t.Parallel()
	s := newServices(t)
	worker := s.start()
	registry := s.registryExposition()
	require.Contains(t, registry, "\nstowage_counter_scope_emissions_total 2\n", "the version's two scopes")

	// A job that was given up, one that nobody begins, and looks that would come by
	// the minute.
	s.exec(`INSERT INTO river.river_job (kind, queue, args, max_attempts, state, finalized_at) VALUES ('x', 'default', '{}', 1, 'discarded', now())`)
	s.exec(`INSERT INTO river.river_job (kind, queue, args, max_attempts) VALUES ('x', 'of_nobody', '{}', 1)`)
	queued := `INSERT INTO river.river_job (kind, queue, args, max_attempts) VALUES ('reconcile_backlog', 'leader', '{}', 1), ('jobs_sample', 'leader', '{}', 1), ('history_rollup', 'leader', '{}', 1)`
	wanted := seriesOf(expressionsOf(t, alerts.Rules))
	var unexposed []string
	require.Eventually(t, func() bool {
		s.exec(queued)
		_, exposed := worker.get("/metrics")
		unexposed = slices.DeleteFunc(slices.Clone(wanted), func(series string) bool {
			return regexp.MustCompile(series).MatchString(exposed + registry)
		})
		return len(unexposed) == 0
	}, patience, 20*often, "series that nobody exposes: %q", &unexposed)
}

// seriesOf are the series that queries need, as patterns of a line of an exposition:
// each metric, with each value of a label by which it is selected, and with each
// label by which it is grouped.
func seriesOf(expressions string) (series []string) {
	for _, metric := range regexp.MustCompile(`stowage_\w+`).FindAllString(expressions, -1) {
		series = append(series, `(?m)^`+metric+`[{ ]`)
	}
	for _, selector := range regexp.MustCompile(`(stowage_\w+)\{(\w+)=~?"([^"]+)"\}`).FindAllStringSubmatch(expressions, -1) {
		for value := range strings.SplitSeq(selector[3], "|") {
			series = append(series, `(?m)^`+selector[1]+`\{(.*,)?`+selector[2]+`="`+value+`"`)
		}
	}
	for _, group := range regexp.MustCompile(`by \((\w+)\) \((stowage_\w+)\)`).FindAllStringSubmatch(expressions, -1) {
		series = append(series, `(?m)^`+group[2]+`\{(.*,)?`+group[1]+`="`)
	}
	return series
}

// expressionsOf are the queries of the rules, without comments and texts for people.
func expressionsOf(t *testing.T, rules string) string {
	t.Helper()
	expressions := strings.Join(regexp.MustCompile(`(?s)\n +expr: .*?\n +(?:for|labels):`).FindAllString(rules, -1), "\n")
	require.Equal(t, strings.Count(rules, "- alert:"), strings.Count(expressions, "expr:"))
	require.Len(t, regexp.MustCompile(`stowage_\w+\{\w+=~?"[^"]+"\}`).FindAllString(expressions, -1), strings.Count(expressions, "{"), "selectors that the test does not read")
	require.Len(t, regexp.MustCompile(`by \(\w+\) \(stowage_\w+\)`).FindAllString(expressions, -1), strings.Count(expressions, "by ("), "groups that the test does not read")
	return expressions
}
