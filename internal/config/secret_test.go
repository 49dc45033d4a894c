package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

const password = "hunter2hunter2hunter2"

func TestS3SecretsShowThemselvesToNobody(t *testing.T) {
	t.Parallel()
	secret := NewSecret(password)
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(handler).Info("x", "secret", secret, "inside", struct{ S Secret }{secret}, "pointer", &secret, "list", []Secret{secret})
	}
	asJSON, err := json.Marshal(map[string]any{"a": secret, "b": []Secret{secret}})
	require.NoError(t, err)
	asYAML, err := yaml.Parser().Marshal(map[string]any{"a": secret, "b": &secret})
	require.NoError(t, err)
	type hidden struct{ secret Secret } // fmt cannot call methods in here

	for _, shown := range []string{
		fmt.Sprint(secret), fmt.Sprintf("%v %+v %#v %s %q %x %X %d %T", secret, secret, secret, secret, secret, secret, secret, secret, secret),
		fmt.Sprintf("%v %+v %#v", hidden{secret}, hidden{secret}, hidden{secret}),
		fmt.Sprintf("%v %+v %#v", &secret, &secret, &secret), fmt.Errorf("%w: %v", errors.ErrUnsupported, secret).Error(),
		log.String(), string(asJSON), string(asYAML),
	} {
		requireNoPassword(t, shown)
	}
	require.JSONEq(t, `{"a":"[redacted]","b":["[redacted]"]}`, string(asJSON))
	require.Equal(t, password, secret.Reveal())
	require.Empty(t, Secret{}.String(), "whether a secret is set may be seen")
}

// requireNoPassword also looks for the password as %x would write it, and for a
// part of it.
func requireNoPassword(t *testing.T, shown string) {
	t.Helper()
	require.NotContains(t, shown, "hunter2")
	require.NotContains(t, strings.ToLower(shown), fmt.Sprintf("%x", "hunter2"))
}

func TestS3NothingOfAConfigurationShowsASecret(t *testing.T) {
	t.Parallel()
	c, err := source{file: `
database: {url: "postgres://app:` + password + `@db/stowage?sslpassword=` + password + `"}
redis: {password: ` + password + `, sentinel: {password: ` + password + `, master_set: m, addresses: ["s:1"]}}
admin: {token: ` + password + `}
`}.load(t)
	require.NoError(t, err)
	require.Equal(t, password, c.Admin.Token.Reveal())

	dump, err := c.Dump()
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(dump, redacted))
	asJSON, err := json.Marshal(c)
	require.NoError(t, err)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", c, "value", *c)
	for _, shown := range []string{
		dump, string(asJSON), log.String(), fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprint(c.Warnings()),
	} {
		requireNoPassword(t, shown)
	}
}

// Whatever is wrong, and wherever a password was put by mistake, no error
// repeats it.
func TestS3NoErrorShowsASecret(t *testing.T) {
	t.Parallel()
	tooShort := password[:14]
	for name, s := range map[string]source{
		"a URL with a port that is none":       {file: "database: {url: 'postgres://app:" + password + "@db:port/x'}"},
		"a URL with a slash in its password":   {file: "database: {url: 'postgres://app:1/" + password + "@db/x'}"},
		"a URL with a space in its password":   {file: "database: {url: 'postgres://app:a " + password + "@db/x'}"},
		"a URL with a colon in its password":   {file: "database: {url: 'postgres://app:a:" + password + ":b@db:x/x'}"},
		"a URL with a bad escape":              {file: "database: {url: 'postgres://app:%zz" + password + "@db/x'}"},
		"a URL without scheme":                 {file: "database: {url: 'app:" + password + "@db/x'}"},
		"a URL of another kind":                {file: "database: {url: 'mysql://app:" + password + "@db/x'}"},
		"a URL with an unknown sslmode":        {file: "database: {url: 'postgres://app:" + password + "@db/x?sslmode=" + password + "'}"},
		"a URL in several lines":               {file: "database: {url: \"postgres://app:\\n" + password + "@db/x\"}"},
		"a connection string":                  {file: "database: {url: 'host=db password=" + password + "'}"},
		"a password that is a list":            {file: "redis: {password: [" + password + "]}"},
		"a password that is a section":         {file: "redis: {password: {" + password + ": " + password + "}}"},
		"a password in an address":             {file: "redis: {addresses: ['redis://:" + password + "@redis:6379']}"},
		"a password before an address":         {file: "redis: {addresses: ['" + password + "@redis:6379']}"},
		"a password in a sentinel's address":   {file: "redis: {sentinel: {addresses: ['app:" + password + "@s:1']}}"},
		"a section in a list of addresses":     {file: "redis: {addresses: [{password: " + password + "}]}"},
		"a token that is too short":            {file: "admin: {token: " + tooShort + "}"},
		"a token in an unknown setting":        {file: "admin: {tokens: " + password + "}"},
		"a token in place of a section":        {file: "admin: " + password},
		"a password in an unknown variable":    {env: []string{"STOWAGE_REDIS_PASSWORD=" + password}},
		"a password beside its file":           {env: []string{"STOWAGE_REDIS__PASSWORD=" + password, "STOWAGE_REDIS__PASSWORD_FILE=/x"}},
		"a file that is no mapping":            {file: password},
		"a file that is no mapping, quoted":    {file: "'`" + password + "`'"},
		"a file that is a list":                {file: "[" + password + "]"},
		"a file with a syntax error":           {file: "redis:\n  password: " + password + ": x\n"},
		"a file with a tab":                    {file: "redis:\n\tpassword: " + password + "\n"},
		"a file with an unknown alias":         {file: "redis: {password: *x}\nadmin: {token: " + password + "}"},
		"a file with a setting given twice":    {file: "redis: {password: " + password + ", password: " + password + "}"},
		"a URL without scheme as an argument":  {args: []string{"--database-url=app:" + password + "@db/x"}},
		"a wrong URL for a flag of the worker": {args: []string{"--database-url", "postgres://app:" + password + "@db:x/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := s.load(t)
			require.Error(t, err)
			requireNoPassword(t, err.Error())
		})
	}
}

func TestS3PasswordsHaveNoFlags(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("stowage", pflag.ContinueOnError)
	AddFlags(flags)
	for _, name := range []string{"redis-password", "redis-sentinel-password", "admin-token"} {
		require.Nil(t, flags.Lookup(name), name)
		requireNoPassword(t, flags.Parse([]string{"--" + name + "=" + password}).Error())
	}
	requireNoPassword(t, flags.FlagUsages())
}
