package buffer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// keyVersion is the format of keys and values. A release that changes either
// raises it, and drains the old keys before it stops reading them.
const keyVersion = "1"

const keyRoot = "stowage:" + keyVersion + ":"

// The braces are Redis Cluster's hash tag: every key of a bucket is in one slot.
func bucketPrefix(bucket int) string {
	return keyRoot + "{" + strconv.Itoa(bucket) + "}:"
}

const (
	dirtyNamespaceName  = "dirty:namespace"
	dirtyRepositoryName = "dirty:repository"
	inFlightName        = "inflight"
	quarantineName      = "quarantine"
	leaseName           = "lease"
	identityName        = "identity"
	sinceName           = "since"
	bufferName          = "buf:"
	flushName           = "flush:"
	asideName           = "aside:"
)

// setKeys are the keys that most scripts begin with, in the order that
// common.lua relies on.
func setKeys(bucket int) []string {
	prefix := bucketPrefix(bucket)
	return []string{
		prefix + quarantineName, prefix + inFlightName,
		prefix + dirtyNamespaceName, prefix + dirtyRepositoryName,
	}
}

func dirtyKey(bucket int, kind accounting.ScopeKind) string {
	if kind == accounting.KindNamespace {
		return bucketPrefix(bucket) + dirtyNamespaceName
	}
	return bucketPrefix(bucket) + dirtyRepositoryName
}

func bufferKey(bucket int, member string) string { return bucketPrefix(bucket) + bufferName + member }
func flushKey(bucket int, member string) string  { return bucketPrefix(bucket) + flushName + member }

// member is a scope as the sets hold it. A repository's names its namespace
// too, because Expired and Corrupt scopes are known by nothing else.
func member(s accounting.Scope) string {
	if s.Kind == accounting.KindNamespace {
		return "n:" + s.ID.String()
	}
	return "r:" + s.Namespace.String() + ":" + s.ID.String()
}

// parseMember is the inverse of member for the scopes of one bucket.
func parseMember(bucket int, s string) (accounting.Scope, error) {
	scope, ok := splitMember(s)
	if !ok || member(scope) != s || accounting.Bucket(scope.Namespace) != bucket {
		return accounting.Scope{}, fmt.Errorf("%q names no scope of bucket %d", s, bucket)
	}
	return scope, nil
}

func splitMember(s string) (accounting.Scope, bool) {
	kind, rest, _ := strings.Cut(s, ":")
	first, second, _ := strings.Cut(rest, ":")
	namespace, err := uuid.Parse(first)
	if err != nil {
		return accounting.Scope{}, false
	}
	switch kind {
	case "n":
		return accounting.NamespaceScope(namespace), true
	case "r":
		repository, err := uuid.Parse(second)
		return accounting.RepositoryScope(namespace, repository), err == nil
	default:
		return accounting.Scope{}, false
	}
}

// parseScopeKey takes the key of a buffer or of a flush apart.
func parseScopeKey(key string) (scopeKey, bool) {
	rest, ok := strings.CutPrefix(key, keyRoot+"{")
	if !ok {
		return scopeKey{}, false
	}
	number, rest, _ := strings.Cut(rest, "}:")
	bucket, err := strconv.Atoi(number)
	if err != nil || bucket < 0 || bucket >= accounting.Buckets {
		return scopeKey{}, false
	}
	for _, name := range []string{bufferName, flushName} {
		if m, ok := strings.CutPrefix(rest, name); ok {
			_, err := parseMember(bucket, m)
			return scopeKey{key: key, bucket: bucket, name: name, member: m}, err == nil
		}
	}
	return scopeKey{}, false
}

type scopeKey struct {
	key    string
	bucket int
	name   string
	member string
}
