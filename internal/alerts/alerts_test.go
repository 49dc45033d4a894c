package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
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
