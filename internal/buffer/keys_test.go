package buffer

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

const (
	someNamespace  = "018f3a5e-0000-7000-8000-0000000000aa"
	someRepository = "018f3a5e-0000-7000-8000-0000000000bb"
)

func TestMember(t *testing.T) {
	t.Parallel()
	namespace, repository := uuid.MustParse(someNamespace), uuid.MustParse(someRepository)
	bucket := accounting.Bucket(namespace)

	t.Run("a scope is its member's scope", func(t *testing.T) {
		t.Parallel()
		for _, s := range []accounting.Scope{
			accounting.NamespaceScope(namespace), accounting.RepositoryScope(namespace, repository),
		} {
			back, err := parseMember(bucket, member(s))
			require.NoError(t, err)
			require.Equal(t, s, back)
		}
		require.Equal(t, "n:"+someNamespace, member(accounting.NamespaceScope(namespace)))
		require.Equal(t, "r:"+someNamespace+":"+someRepository, member(accounting.RepositoryScope(namespace, repository)))
	})

	for name, text := range map[string]string{
		"empty":                   "",
		"kind only":               "n",
		"no id":                   "n:",
		"unknown kind":            "x:" + someNamespace,
		"upper case":              "n:" + strings.ToUpper(someNamespace),
		"braces":                  "n:{" + someNamespace + "}",
		"urn":                     "n:urn:uuid:" + someNamespace,
		"no dashes":               "n:" + strings.ReplaceAll(someNamespace, "-", ""),
		"rest after namespace":    "n:" + someNamespace + ":" + someRepository,
		"repository without id":   "r:" + someNamespace,
		"repository with rest":    "r:" + someNamespace + ":" + someRepository + ":",
		"space":                   "n: " + someNamespace,
		"namespace of elsewhere":  "n:" + someRepository,
		"repository of elsewhere": "r:" + someRepository + ":" + someNamespace,
	} {
		t.Run("refused: "+name, func(t *testing.T) {
			t.Parallel()
			_, err := parseMember(bucket, text)
			require.ErrorContains(t, err, "names no scope of bucket")
		})
	}
}

func FuzzParseMember(f *testing.F) {
	f.Add(7, "n:"+someNamespace)
	f.Add(0, "r:"+someNamespace+":"+someRepository)
	f.Add(255, "r::")
	f.Fuzz(func(t *testing.T, bucket int, text string) {
		scope, err := parseMember(bucket, text)
		if err == nil {
			require.Equal(t, text, member(scope))
			require.Equal(t, bucket, accounting.Bucket(scope.Namespace))
		}
	})
}

func FuzzParseScopeKey(f *testing.F) {
	namespace := uuid.MustParse(someNamespace)
	f.Add(bufferKey(accounting.Bucket(namespace), "n:"+someNamespace))
	f.Add("stowage:1:{01}:flush:n:" + someNamespace)
	f.Add("stowage:1:{")
	f.Fuzz(func(t *testing.T, key string) {
		if k, ok := parseScopeKey(key); ok {
			require.Equal(t, key, bucketPrefix(k.bucket)+k.name+k.member)
		}
	})
}

func TestS1KeysHoldFixedWordsNumbersAndUUIDsOnly(t *testing.T) {
	t.Parallel()
	everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 1_700_000_000_000_001, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		b.claim(t)
		require.NoError(t, b.Quarantine(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		require.NoError(t, b.Forget(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		require.NoError(t, b.SetIdentity(t.Context(), b.bucket, uuid.Must(uuid.NewV7())))

		const id = `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`
		scope := `(n:` + id + `|r:` + id + `:` + id + `)`
		key := regexp.MustCompile(`^stowage:1:\{\d{1,3}\}:(dirty:namespace|dirty:repository|inflight|quarantine|lease|identity|since|(aside:` + id + `:)?(buf|flush):` + scope + `)$`)
		field := regexp.MustCompile(`^(\d+:)?(bytes|components|emissions|marker|batch)$`)
		requireKeys := func(count int, which string) {
			keys := b.dump(t)
			require.Len(t, keys, count, which)
			for name := range keys {
				require.Regexp(t, key, name)
				if strings.Contains(name, "buf:") || strings.Contains(name, "flush:") {
					reply := b.do(t, "HKEYS", name)
					fields, err := reply.AsStrSlice()
					require.NoError(t, err)
					for _, f := range fields {
						require.Regexp(t, field, f)
					}
				}
			}
		}
		requireKeys(10, "every kind of key but those aside and one dirty set is there: the repository's went with the quarantine")
		require.Equal(t, []string{member(b.repository)}, b.members(t, quarantineName))

		_, err := b.SetAside(t.Context(), uuid.Must(uuid.NewV7()), func(int) {})
		require.NoError(t, err)
		requireKeys(5, "the lease, and aside a buffer and a flush of each scope")
	})(t)
}
