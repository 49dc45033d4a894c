package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

const (
	configFlag = "config"
	delimiter  = "."

	envPrefix  = "STOWAGE_"
	envConfig  = "STOWAGE_CONFIG"
	envForTest = "STOWAGE_TEST_"
)

// Load reads the worker's configuration from the YAML file named by --config
// or STOWAGE_CONFIG, the environment (environ as of os.Environ) and flags
// declared by AddFlags; each overrides the one before. It reports every mistake
// at once, joined, each with the path of its setting and never with a secret.
func Load(flags *pflag.FlagSet, environ []string) (*Config, error) {
	c, p := read(flags, environ)
	c.validate(p)
	return result(c, p)
}

// LoadDatabase is Load for a command that only needs the database: nothing else
// has to be set, and no other secret is read.
func LoadDatabase(flags *pflag.FlagSet, environ []string) (*Database, error) {
	c, p := read(flags, environ)
	c.validateDatabase(p)
	return result(&c.Database, p)
}

// LoadStores is Load for a command that needs the database, Redis and buffer.ttl:
// nothing else has to be set, and no other secret is read.
func LoadStores(flags *pflag.FlagSet, environ []string) (*Config, error) {
	c, p := read(flags, environ)
	c.validateDatabase(p)
	c.validateRedis(p)
	atLeast(p, "buffer.ttl", c.Buffer.TTL, minTimeout)
	return result(c, p)
}

func result[T any](loaded *T, p *problems) (*T, error) {
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return loaded, nil
}

// Dump is the configuration as YAML that Load takes, with secrets redacted.
func (c *Config) Dump() (string, error) {
	values := make(map[string]any)
	for _, s := range c.settings() {
		values[s.path] = s.get()
	}
	k := koanf.New(delimiter)
	if err := k.Load(confmap.Provider(values, delimiter), nil); err != nil {
		return "", fmt.Errorf("dump of the configuration: %w", err)
	}
	text, err := k.Marshal(yaml.Parser())
	if err != nil {
		return "", fmt.Errorf("dump of the configuration: %w", err)
	}
	return string(text), nil
}

// problems collects every mistake. A setting whose own value is wrong is
// remembered, so that no combination is judged by it as well.
type problems struct {
	errs      []error
	malformed map[string]bool
}

func (p *problems) refuse(path, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
}

func (p *problems) refuseValue(path, format string, args ...any) {
	p.malformed[path] = true
	p.refuse(path, format, args...)
}

// sound reports whether the settings have values of their own right.
func (p *problems) sound(paths ...string) bool {
	for _, path := range paths {
		if p.malformed[path] {
			return false
		}
	}
	return true
}

// read merges the sources over the defaults.
func read(flags *pflag.FlagSet, environ []string) (*Config, *problems) {
	c, p := Default(), &problems{malformed: make(map[string]bool)}
	settings := c.settings()
	k := koanf.New(delimiter)
	for _, source := range []*koanf.Koanf{
		fromFile(p, settings, configFile(flags, environ)),
		fromEnvironment(p, settings, environ),
		fromFlags(settings, flags),
	} {
		if err := k.Merge(source); err != nil {
			p.refuse("configuration", "%v", err)
		}
	}
	for _, s := range settings {
		if !k.Exists(s.path) {
			continue
		}
		if err := s.set(k.Get(s.path)); err != nil {
			p.refuseValue(s.path, "%v", err)
		}
	}
	return c, p
}

func configFile(flags *pflag.FlagSet, environ []string) string {
	if flag := flags.Lookup(configFlag); flag != nil && flag.Changed {
		return flag.Value.String()
	}
	for _, variable := range environ {
		if path, found := strings.CutPrefix(variable, envConfig+"="); found {
			return path
		}
	}
	return ""
}

func fromFile(p *problems, settings []setting, path string) *koanf.Koanf {
	k := koanf.New(delimiter)
	if path == "" {
		return k
	}
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		p.refuse(path, "%s", withoutValues(err))
		return koanf.New(delimiter)
	}
	for _, key := range k.Keys() {
		switch {
		case isSetting(settings, key):
		case !isSection(settings, key):
			p.refuse(key, "no setting has this name (in %s)", path)
		case !isEmpty(k.Get(key)):
			p.refuse(key, "is a section, not a setting (in %s)", path)
		}
	}
	return k
}

// withoutValues cuts the excerpts out of an error of the YAML parser: they are
// values, and a value may be a secret.
func withoutValues(err error) string {
	return regexp.MustCompile("`.*`").ReplaceAllString(err.Error(), "a value")
}

// isSetting also says so of what lies below a setting: the setting's own type
// then refuses it.
func isSetting(settings []setting, key string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool {
		return key == s.path || strings.HasPrefix(key, s.path+delimiter)
	})
}

func isSection(settings []setting, key string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool { return strings.HasPrefix(s.path, key+delimiter) })
}

func isEmpty(value any) bool {
	section, isMap := value.(map[string]any)
	return value == nil || isMap && len(section) == 0
}

func fromEnvironment(p *problems, settings []setting, environ []string) *koanf.Koanf {
	paths := make(map[string]string)
	for _, s := range settings {
		paths[s.variable()] = s.path
	}
	k := koanf.New(delimiter)
	provider := env.Provider(delimiter, env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			path := paths[name]
			if path == "" && name != envConfig && !strings.HasPrefix(name, envForTest) {
				p.refuse(name, "no setting has this variable")
			}
			return path, value
		},
	})
	if err := k.Load(provider, nil); err != nil {
		p.refuse("environment", "%v", err)
	}
	return k
}

func fromFlags(settings []setting, flags *pflag.FlagSet) *koanf.Koanf {
	paths := make(map[string]string)
	for _, s := range settings {
		if name := s.flag(); name != "" {
			paths[name] = s.path
		}
	}
	k := koanf.New(delimiter)
	provider := posflag.ProviderWithFlag(flags, delimiter, nil, func(f *pflag.Flag) (string, any) {
		return paths[f.Name], f.Value.String()
	})
	// The provider only walks the flags and cannot fail.
	_ = k.Load(provider, nil)
	return k
}

// readSecret takes a secret from the file that is named in its place.
func readSecret(p *problems, path string, secret *Secret, file string) {
	if file == "" {
		return
	}
	filePath := path + "_file"
	if secret.IsSet() {
		p.refuse(filePath, "%s is set too: set only one of them", path)
		return
	}
	content, err := os.ReadFile(file)
	if err != nil {
		p.refuseValue(path, "%s: %v", filePath, err)
		return
	}
	text := strings.TrimRight(string(content), "\r\n")
	if text == "" {
		p.refuseValue(path, "%s: %s is empty", filePath, file)
		return
	}
	*secret = NewSecret(text)
}
