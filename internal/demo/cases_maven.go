package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/publishes"
)

const (
	// sha1Size is the size of a file that holds a SHA-1 in hex.
	sha1Size = 40
	// metadataSize is what the two maven-metadata.xml of the case hold; any size
	// would do.
	metadataSize, newMetadataSize = 400, 500
)

// replacedSnapshot deploys a snapshot with its checksums and metadata, then
// another jar, another checksum and other metadata in their places.
func replacedSnapshot(lines []publishes.Publish) (scenario, error) {
	jars := withJar(lines)
	if len(jars) < 2 || jar(jars[0]).SHA256 == jar(jars[1]).SHA256 {
		return scenario{}, errors.New("the data does not begin with two Maven versions that have different jars")
	}
	before := snapshot(jars[0], jar(jars[0]), metadataSize)
	after := snapshot(jars[0], jar(jars[1]), newMetadataSize)
	return scenario{
		name: "replaced-snapshot", format: schematype.FormatMaven, kind: schematype.KindHosted,
		what: fmt.Sprintf("the jar of %s:%s is replaced, %d bytes by %d, with its checksum and maven-metadata.xml",
			before[0].Name, before[0].Version, jar(jars[0]).Size, jar(jars[1]).Size),
		do: func(ctx context.Context, s site) error {
			if err := s.publishes(ctx, append(before, after...)...); err != nil {
				return err
			}
			return s.collect(ctx, s.namespace)
		},
		want: holding(after...),
	}, nil
}

// snapshot is what a client deploys: the version, and the metadata of the artifact.
func snapshot(of publishes.Publish, jar publishes.Blob, metadata int64) []publishes.Publish {
	version, artifact := of, of
	version.Version, artifact.Version = of.Version+"-SNAPSHOT", ""
	checksum := derived("library.jar.sha1", jar.SHA256.String(), sha1Size)
	jar.Name = "library.jar"
	version.Blobs = []publishes.Blob{jar, checksum}
	artifact.Blobs = []publishes.Blob{derived("maven-metadata.xml", jar.SHA256.String(), metadata)}
	return []publishes.Publish{version, artifact}
}

// derived is a file that the data does not have.
func derived(name, from string, size int64) publishes.Blob {
	return publishes.Blob{Name: name, SHA256: sha256.Sum256([]byte(name + " of " + from)), Size: size}
}

// oneJarTwice publishes two versions of an artifact that have the same jar.
func oneJarTwice(lines []publishes.Publish) (scenario, error) {
	jars := withJar(lines)
	for i, b := range jars {
		for _, a := range jars[:i] {
			if a.Name == b.Name && jar(a).SHA256 == jar(b).SHA256 {
				return sameJar(a, b), nil
			}
		}
	}
	return scenario{}, errors.New("the data has no two Maven versions with one jar")
}

func sameJar(a, b publishes.Publish) scenario {
	return scenario{
		name: "one-jar-twice", format: schematype.FormatMaven, kind: schematype.KindHosted,
		what: fmt.Sprintf("%s has one jar of %d bytes in %s and in %s: the namespace has it once",
			a.Name, jar(a).Size, a.Version, b.Version),
		do:   func(ctx context.Context, s site) error { return s.publishes(ctx, a, b) },
		want: holding(a, b),
	}
}

func withJar(lines []publishes.Publish) []publishes.Publish {
	var some []publishes.Publish
	for _, p := range ofFormat(lines, schematype.FormatMaven) {
		if jar(p).Size > 0 {
			some = append(some, p)
		}
	}
	return some
}

// jar is the first jar of a version, or none.
func jar(p publishes.Publish) publishes.Blob {
	for _, b := range p.Blobs {
		if strings.HasSuffix(b.Name, ".jar") {
			return b
		}
	}
	return publishes.Blob{}
}
