package schematype

import (
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
)

// Format is the package format of a repository. It is stored as a smallint.
type Format int16

// The formats that Stowage accounts for.
const (
	FormatContainer Format = 1
	FormatMaven     Format = 2
	FormatNPM       Format = 3
)

var formatNames = enumNames[Format]{
	what:  "format",
	names: map[Format]string{FormatContainer: "container", FormatMaven: "maven", FormatNPM: "npm"},
}

// Formats returns every format, in the order of their numbers.
func Formats() []Format { return formatNames.all() }

// ParseFormat reads a format's name: container, maven or npm.
func ParseFormat(name string) (Format, error) { return formatNames.parse(name) }

// String is the format's name.
func (f Format) String() string { return formatNames.name(f) }

// Valid reports whether f is one of the formats above.
func (f Format) Valid() bool { return formatNames.valid(f) }

// Scan reads the smallint that the database holds.
func (f *Format) Scan(src any) error { return formatNames.scan(f, src) }

// Value is the smallint to store; an unknown format is an error.
func (f Format) Value() (driver.Value, error) { return formatNames.value(f) }

// Kind says where a repository's content comes from. It is stored as a smallint.
type Kind int16

// The kinds of repository. Hosted repositories hold what was published to
// them, remote ones cache an upstream, virtual ones are views: they store and
// count nothing.
const (
	KindHosted  Kind = 1
	KindRemote  Kind = 2
	KindVirtual Kind = 3
)

var kindNames = enumNames[Kind]{
	what:  "kind",
	names: map[Kind]string{KindHosted: "hosted", KindRemote: "remote", KindVirtual: "virtual"},
}

// Kinds returns every kind, in the order of their numbers.
func Kinds() []Kind { return kindNames.all() }

// ParseKind reads a kind's name: hosted, remote or virtual.
func ParseKind(name string) (Kind, error) { return kindNames.parse(name) }

// String is the kind's name.
func (k Kind) String() string { return kindNames.name(k) }

// Valid reports whether k is one of the kinds above.
func (k Kind) Valid() bool { return kindNames.valid(k) }

// Scan reads the smallint that the database holds.
func (k *Kind) Scan(src any) error { return kindNames.scan(k, src) }

// Value is the smallint to store; an unknown kind is an error.
func (k Kind) Value() (driver.Value, error) { return kindNames.value(k) }

// enumNames is what the enum-like types share: a closed set of small numbers
// with names. They are smallints with a CHECK in the database, never a
// Postgres ENUM, whose values cannot be dropped or reordered.
type enumNames[T ~int16] struct {
	what  string
	names map[T]string
}

func (e enumNames[T]) all() []T {
	all := make([]T, 0, len(e.names))
	for v := range e.names {
		all = append(all, v)
	}
	slices.Sort(all)
	return all
}

func (e enumNames[T]) choices() string {
	names := make([]string, 0, len(e.names))
	for _, v := range e.all() {
		names = append(names, e.names[v])
	}
	return strings.Join(names, ", ")
}

func (e enumNames[T]) parse(name string) (T, error) {
	for v, n := range e.names {
		if n == name {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%s %q is unknown: use one of %s", e.what, name, e.choices())
}

func (e enumNames[T]) name(v T) string {
	if n, ok := e.names[v]; ok {
		return n
	}
	return fmt.Sprintf("%s(%d)", e.what, int16(v))
}

func (e enumNames[T]) valid(v T) bool {
	_, ok := e.names[v]
	return ok
}

func (e enumNames[T]) scan(dst *T, src any) error {
	n, ok := src.(int64)
	if !ok {
		return fmt.Errorf("%s: cannot read a %T from the database, want a smallint", e.what, src)
	}
	for v := range e.names {
		if int64(v) == n {
			*dst = v
			return nil
		}
	}
	return fmt.Errorf("%s: the database holds %d, which is none of %s", e.what, n, e.choices())
}

func (e enumNames[T]) value(v T) (driver.Value, error) {
	if !e.valid(v) {
		return nil, fmt.Errorf("%s %d is unknown: use one of %s", e.what, int16(v), e.choices())
	}
	return int64(v), nil
}
