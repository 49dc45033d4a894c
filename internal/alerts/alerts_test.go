package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/metrics"
)

// The cases are in testdata, as promtool reads them.
func TestAC33AlertsFireAndStaySilent(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	require.NoError(t, err, "promtool is missing: run make test as root, or install the Debian package prometheus")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(Rules), 0o600))
	cases, err := os.ReadFile(filepath.Join("testdata", "rules_test.yaml"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules_test.yaml"), cases, 0o600))

	checked, err := exec.Command(promtool, "check", "rules", filepath.Join(dir, "rules.yaml")).CombinedOutput()
	require.NoError(t, err, "%s", checked)
	tested, err := exec.Command(promtool, "test", "rules", filepath.Join(dir, "rules_test.yaml")).CombinedOutput()
	require.NoError(t, err, "%s", tested)
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(Rules, -1) {
		require.Regexp(t, `alertname: `+alert[1]+"\n +exp_alerts:\n", string(cases), "%s never fires in a test", alert[1])
		require.Regexp(t, `alertname: `+alert[1]+"\n( +- eval_time|\n| +- interval|$)", string(cases), "%s is never silent in a test", alert[1])
		readme, err := os.ReadFile("README.md")
		require.NoError(t, err)
		require.Contains(t, string(readme), "## "+alert[1]+"\n", "no runbook")
	}
}

func TestAC33RulesNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	m.SetBacklog(0)
	m.DirtySetSize.WithLabelValues(accounting.KindNamespace.String())
	families, err := registry.Gather()
	require.NoError(t, err)
	exposed := map[string]bool{}
	for _, family := range families {
		exposed[family.GetName()] = true
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				exposed[label.GetName()+"="+label.GetValue()] = true
			}
		}
	}
	for _, name := range regexp.MustCompile(`stowage_\w+`).FindAllString(Rules, -1) {
		require.True(t, exposed[strings.TrimSuffix(name, "_count")], "%s is exposed by nobody", name)
	}
	for _, matcher := range regexp.MustCompile(`(\w+)=~?"([^"]+)"`).FindAllStringSubmatch(Rules, -1) {
		for value := range strings.SplitSeq(matcher[2], "|") {
			require.True(t, exposed[matcher[1]+"="+value], "no metric has the label %s=%q", matcher[1], value)
		}
	}
}
