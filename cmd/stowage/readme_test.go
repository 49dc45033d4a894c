package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	yamlparser "github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/stowage-dev/stowage/internal/config"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	return string(text)
}

// blocks are the fenced blocks in that language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	var found []string
	for _, match := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(readme(t), -1) {
		found = append(found, match[1])
	}
	require.NotEmpty(t, found, "the README has no block in %s", language)
	return found
}

// requireCallable checks that the command is there and knows its flags.
func requireCallable(t *testing.T, args []string) {
	t.Helper()
	cmd, rest, err := rootCommand().Find(args)
	require.NoError(t, err, args)
	require.True(t, cmd.Runnable() && cmd.HasParent(), "%v is no command", args)
	require.NoError(t, cmd.ParseFlags(rest), args)
}

func TestReadmeNamesEveryCommand(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, child := range cmd.Commands() {
			walk(child)
		}
		if !cmd.HasSubCommands() {
			require.Contains(t, readme(t), "`"+cmd.CommandPath()+"`")
		}
	}
	walk(rootCommand())
	for _, match := range regexp.MustCompile("`stowage ([^`<]+)`").FindAllStringSubmatch(readme(t), -1) {
		requireCallable(t, strings.Fields(match[1]))
	}
}

// Every command of a block runs, in the order of the file, on real servers.
func TestReadmeCommandsRun(t *testing.T) {
	t.Parallel()
	s := acmeServices(t)
	s.store(100)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(self(t), filepath.Join(dir, "stowage")))
	for _, block := range blocks(t, "sh") {
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			if line == "stowage worker" { // it has no end
				s.withWorker(func() {})
				continue
			}
			require.True(t, strings.HasPrefix(line, "stowage "), "not a command of ours: %s", line)
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", line)
			cmd.Dir = dir
			cmd.Env = append(s.environment(), "PATH="+dir+":"+os.Getenv("PATH"))
			run := func() {
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s\n%s", line, out)
			}
			if strings.Contains(line, "--wait") {
				s.withWorker(run)
			} else {
				run() // no backfill is done before it is paused
			}
		}
	}
	require.FileExists(t, filepath.Join(dir, "roles.sql"))
}

// withWorker works meanwhile, until a SIGTERM.
func (s *services) withWorker(meanwhile func()) {
	s.t.Helper()
	w := s.start()
	meanwhile()
	require.NoError(s.t, w.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(s.t, w.exit())
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

func (s *services) environment() []string {
	return []string{asCommand + "=1", "HOME=/", "STOWAGE_DATABASE__URL=" + s.url, "STOWAGE_REDIS__ADDRESSES=" + s.redis.Addr}
}

func TestReadmeVariablesAreSettings(t *testing.T) {
	t.Parallel()
	text, err := config.Default().Dump()
	require.NoError(t, err)
	dump, err := yamlparser.Parser().Unmarshal([]byte(text))
	require.NoError(t, err)
	for _, variable := range regexp.MustCompile(`STOWAGE_[A-Z_]+`).FindAllString(readme(t), -1) {
		section := any(dump)
		for name := range strings.SplitSeq(strings.ToLower(strings.TrimPrefix(variable, "STOWAGE_")), "__") {
			parent, isSection := section.(map[string]any)
			require.True(t, isSection, variable)
			require.Contains(t, parent, name, variable)
			section = parent[name]
		}
	}
	for _, match := range regexp.MustCompile("`([a-z]+(?:\\.[a-z_]+)+)`").FindAllStringSubmatch(readme(t), -1) {
		if match[1] != "roles.sql" {
			require.Contains(t, settingPaths("", dump), match[1])
		}
	}
}

func settingPaths(prefix string, section map[string]any) (paths []string) {
	for name, value := range section {
		paths = append(paths, prefix+name)
		if inner, isSection := value.(map[string]any); isSection {
			paths = append(paths, settingPaths(prefix+name+".", inner)...)
		}
	}
	return paths
}

func TestReadmeRedisTakesTheSettings(t *testing.T) {
	t.Parallel()
	s := newServices(t)
	client := s.redis.Client(t)
	for line := range strings.Lines(blocks(t, "conf")[0]) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		require.True(t, found, line)
		require.NoError(t, client.Do(t.Context(), client.B().ConfigSet().ParameterValue().ParameterValue(name, value).Build()).Error(), line)
	}
	require.NoError(t, s.buf.Check(t.Context()))
}

func TestReadmeUnit(t *testing.T) {
	t.Parallel()
	unit := blocks(t, "ini")[0]
	start := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/stowage (.*)$`).FindStringSubmatch(unit)
	require.NotNil(t, start)
	requireCallable(t, strings.Fields(start[1]))
	for line := range strings.Lines(unit) {
		require.Regexp(t, `^(\[[A-Z][a-z]+\]|[A-Z][A-Za-z]+=\S.*|)$`, strings.TrimSpace(line))
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return // where there is no systemd, the lines above are all that can be said
	}
	path := filepath.Join(t.TempDir(), "stowage.service")
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(unit, "/usr/local/bin/stowage", self(t))), 0o600))
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NotContains(t, string(out), "Unknown", string(out))
}

// manifest is what the README's use of Kubernetes' objects: a field that is misspelt
// or misplaced is refused.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		BackoffLimit int `yaml:"backoffLimit"`
		Replicas     int
		Selector     struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				EnableServiceLinks            *bool  `yaml:"enableServiceLinks"`
				RestartPolicy                 string `yaml:"restartPolicy"`
				TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
				Containers                    []container
			}
		}
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name, Value string
		ValueFrom   struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	StartupProbe  probe `yaml:"startupProbe"`
	LivenessProbe probe `yaml:"livenessProbe"`
}

type probe struct {
	HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
	PeriodSeconds    int                         `yaml:"periodSeconds"`
	FailureThreshold int                         `yaml:"failureThreshold"`
}

func TestReadmeManifests(t *testing.T) {
	t.Parallel()
	decoder := yaml.NewDecoder(strings.NewReader(blocks(t, "yaml")[0]))
	decoder.KnownFields(true)
	var kinds []string
	for {
		var m manifest
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		kinds = append(kinds, m.APIVersion+" "+m.Kind)
		pod := m.Spec.Template.Spec
		require.False(t, *pod.EnableServiceLinks, "its variables would be taken for settings")
		require.Equal(t, m.Spec.Selector.MatchLabels, m.Spec.Template.Metadata.Labels)
		require.Len(t, pod.Containers, 1)
		requireStarts(t, pod.Containers[0])
	}
	require.Equal(t, []string{"batch/v1 Job", "apps/v1 Deployment"}, kinds)
}

// requireStarts has the command take the container's arguments and variables.
func requireStarts(t *testing.T, c container) {
	t.Helper()
	requireCallable(t, c.Args)
	for _, p := range []probe{c.StartupProbe, c.LivenessProbe} {
		require.Contains(t, []string{"", "/healthz"}, p.HTTPGet.Path)
		require.Contains(t, []string{"", "admin"}, p.HTTPGet.Port)
	}
	if c.Args[0] != "worker" {
		return
	}
	secrets := map[string]string{"url": "postgres://db/stowage", "token": strings.Repeat("x", 32)}
	cmd := exec.CommandContext(t.Context(), self(t), append(slices.Clone(c.Args), "--validate")...)
	cmd.Env = []string{asCommand + "=1"}
	for _, v := range c.Env {
		value := v.Value
		if key := v.ValueFrom.SecretKeyRef.Key; key != "" {
			require.Contains(t, secrets, key)
			value = secrets[key]
		}
		cmd.Env = append(cmd.Env, v.Name+"="+value)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Run(), stderr.String())
}
