package schematype_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/schematype"
)

const digits = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestDigest(t *testing.T) {
	t.Parallel()

	t.Run("parses with and without its prefix, and prints with it", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{digits, "sha256:" + digits} {
			d, err := schematype.ParseDigest(s)
			require.NoError(t, err)
			require.Equal(t, "sha256:"+digits, d.String())
		}
	})

	t.Run("goes to the database and back", func(t *testing.T) {
		t.Parallel()
		d, err := schematype.ParseDigest(digits)
		require.NoError(t, err)
		v, err := d.Value()
		require.NoError(t, err)
		require.Len(t, v, 32)
		var back schematype.Digest
		require.NoError(t, back.Scan(v))
		require.Equal(t, d, back)
	})

	t.Run("goes to JSON and back", func(t *testing.T) {
		t.Parallel()
		d, err := schematype.ParseDigest(digits)
		require.NoError(t, err)
		text, err := json.Marshal(d)
		require.NoError(t, err)
		require.JSONEq(t, `"sha256:`+digits+`"`, string(text))
		var back schematype.Digest
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, d, back)
	})

	t.Run("refuses what is none, naming it", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{"", "sha256:", digits[1:], digits + "0", strings.ToUpper(digits), "sha512:" + digits, strings.Replace(digits, "e", "g", 1), "sha256:sha256:" + digits} {
			_, err := schematype.ParseDigest(s)
			require.ErrorContains(t, err, `"`+s+`"`)
		}
		var d schematype.Digest
		require.ErrorContains(t, d.Scan([]byte{1}), "1 bytes, want 32")
		require.ErrorContains(t, d.Scan("text"), "string")
		require.Error(t, d.UnmarshalText([]byte("x")))
	})
}

func TestFormatAndKind(t *testing.T) {
	t.Parallel()

	t.Run("names and numbers go both ways", func(t *testing.T) {
		t.Parallel()
		require.Len(t, schematype.Formats(), 3)
		for _, f := range schematype.Formats() {
			parsed, err := schematype.ParseFormat(f.String())
			require.NoError(t, err)
			require.Equal(t, f, parsed)
			v, err := f.Value()
			require.NoError(t, err)
			var back schematype.Format
			require.NoError(t, back.Scan(v))
			require.Equal(t, f, back)
			require.True(t, f.Valid())
		}
		require.Equal(t, []schematype.Kind{schematype.KindHosted, schematype.KindRemote, schematype.KindVirtual}, schematype.Kinds())
	})

	t.Run("refuses what is none, naming it and the choices", func(t *testing.T) {
		t.Parallel()
		_, err := schematype.ParseFormat("rpm")
		require.EqualError(t, err, `format "rpm" is unknown: use one of container, maven, npm`)
		_, err = schematype.ParseKind("proxy")
		require.EqualError(t, err, `kind "proxy" is unknown: use one of hosted, remote, virtual`)
		_, err = schematype.Format(9).Value()
		require.ErrorContains(t, err, "format 9 is unknown")
		_, err = schematype.Kind(0).Value()
		require.ErrorContains(t, err, "kind 0 is unknown")
		var f schematype.Format
		require.ErrorContains(t, f.Scan(int64(65537)), "holds 65537", "a number that would wrap round is refused too")
		require.ErrorContains(t, f.Scan("1"), "string")
		var k schematype.Kind
		require.ErrorContains(t, k.Scan(int64(4)), "holds 4")
		require.Equal(t, "format(9)", schematype.Format(9).String())
		require.False(t, schematype.Kind(4).Valid())
	})
}
