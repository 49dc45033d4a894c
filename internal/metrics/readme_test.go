package metrics

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// recorder keeps what is registered: a registry shows no vector without values.
type recorder struct {
	prometheus.Registerer
	collectors []prometheus.Collector
}

func (r *recorder) MustRegister(c ...prometheus.Collector) { r.collectors = append(r.collectors, c...) }

// names are those of the metrics, with their labels as the README writes them.
func (r *recorder) names(t *testing.T) (names []string) {
	t.Helper()
	read := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: (\{[\w,]*\})`)
	for _, c := range r.collectors {
		descs := make(chan *prometheus.Desc, 1)
		c.Describe(descs)
		desc := (<-descs).String()
		match := read.FindStringSubmatch(desc)
		require.NotNil(t, match, desc)
		name := match[1]
		if match[2] != "{}" {
			name += match[2]
		}
		names = append(names, name)
	}
	return names
}

func TestReadmeListsEachMetric(t *testing.T) {
	t.Parallel()
	var r recorder
	New(&r)
	NewUpkeep(&r)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(readme), -1) {
		listed = append(listed, row[1])
	}
	require.ElementsMatch(t, r.names(t), listed)
}
