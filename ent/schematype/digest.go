// Package schematype holds the Go types of columns that a plain Go type cannot
// keep valid: digests, formats and kinds of repository. Each checks itself on
// the way in and out of the database and names the value that it refuses.
package schematype

import (
	"crypto/sha256"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"strings"
)

const digestPrefix = "sha256:"

// Digest is a SHA-256 digest. It is stored as a bytea of 32 bytes.
type Digest [sha256.Size]byte

// ParseDigest reads 64 lower-case hex digits, with or without the prefix
// "sha256:". Other algorithms are refused: blobs are kept by their SHA-256.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	digits := strings.TrimPrefix(s, digestPrefix)
	if len(digits) != hex.EncodedLen(len(d)) || digits != strings.ToLower(digits) {
		return Digest{}, fmt.Errorf("digest %q: want 64 lower-case hex digits, with or without %q before them", s, digestPrefix)
	}
	if _, err := hex.Decode(d[:], []byte(digits)); err != nil {
		return Digest{}, fmt.Errorf("digest %q: %w", s, err)
	}
	return d, nil
}

// String is the digest as "sha256:" and 64 lower-case hex digits.
func (d Digest) String() string { return digestPrefix + hex.EncodeToString(d[:]) }

// Scan reads the 32 bytes that the database holds.
func (d *Digest) Scan(src any) error {
	b, ok := src.([]byte)
	if !ok {
		return fmt.Errorf("digest: cannot read a %T from the database, want a bytea", src)
	}
	if len(b) != len(d) {
		return fmt.Errorf("digest: the database holds %d bytes, want %d", len(b), len(d))
	}
	copy(d[:], b)
	return nil
}

// Value is the 32 bytes to store.
func (d Digest) Value() (driver.Value, error) { return d[:], nil }

// MarshalText is the digest as String gives it.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what ParseDigest reads.
func (d *Digest) UnmarshalText(text []byte) error {
	parsed, err := ParseDigest(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
