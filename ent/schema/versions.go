package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/edge"
	"entgo.io/ent/schema/field"
	"entgo.io/ent/schema/index"
	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/ent/schematype"
)

// The three version tables hold one component a row. They differ in what names
// a version inside its repository; the rest is versionFields.

// ContainerManifest is one image manifest of a container repository.
type ContainerManifest struct{ ent.Schema }

// Annotations of the ContainerManifest.
func (ContainerManifest) Annotations() []schema.Annotation {
	return versionAnnotations("container_manifests")
}

// Fields of the ContainerManifest.
func (ContainerManifest) Fields() []ent.Field {
	return versionFields(
		field.String("name").SchemaType(text).NotEmpty().Immutable().
			Comment("The image's name inside the repository."),
		field.Other("digest", schematype.Digest{}).SchemaType(bytea).Immutable().
			Comment("Digest of the manifest."),
	)
}

// Edges of the ContainerManifest.
func (ContainerManifest) Edges() []ent.Edge {
	return append(versionEdges("container_manifests"),
		edge.To("tags", ContainerTag.Type).
			StorageKey(edge.Symbol("fk_container_tags_manifest")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
		// Before its other side: Ent would take that for an edge that goes both ways.
		edge.From("indexes", ContainerManifest.Type).Ref("children").
			Through("referrers", ContainerManifestReference.Type).
			Comment("The image indexes that refer to a manifest."),
		edge.To("children", ContainerManifest.Type).
			Through("references", ContainerManifestReference.Type).
			StorageKey(edge.Columns("index_id", "child_id")).
			Comment("The manifests that an image index refers to."),
	)
}

// Indexes of the ContainerManifest.
func (ContainerManifest) Indexes() []ent.Index {
	return versionIndexes("container_manifests", "digest")
}

// MavenVersion is one version of a Maven artifact.
type MavenVersion struct{ ent.Schema }

// Annotations of the MavenVersion.
func (MavenVersion) Annotations() []schema.Annotation { return versionAnnotations("maven_versions") }

// Fields of the MavenVersion.
func (MavenVersion) Fields() []ent.Field {
	return versionFields(
		field.String("name").SchemaType(text).NotEmpty().Immutable().
			Comment("The coordinates: group id, a colon, artifact id."),
		field.String("version").SchemaType(text).Immutable().
			Comment("Empty for the row that holds the artifact's own metadata files."),
	)
}

// Edges of the MavenVersion.
func (MavenVersion) Edges() []ent.Edge {
	return append(versionEdges("maven_versions"),
		edge.To("files", MavenFile.Type).
			StorageKey(edge.Symbol("fk_maven_files_version")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
	)
}

// Indexes of the MavenVersion.
func (MavenVersion) Indexes() []ent.Index { return versionIndexes("maven_versions", "version") }

// NPMVersion is one version of an npm package.
type NPMVersion struct{ ent.Schema }

// Annotations of the NPMVersion.
func (NPMVersion) Annotations() []schema.Annotation { return versionAnnotations("npm_versions") }

// Fields of the NPMVersion.
func (NPMVersion) Fields() []ent.Field {
	return versionFields(
		field.String("name").SchemaType(text).NotEmpty().Immutable().
			Comment("The package's name, with its scope if it has one."),
		field.String("version").SchemaType(text).NotEmpty().Immutable(),
		field.String("deprecation").SchemaType(text).NotEmpty().Optional().Nillable().
			Comment("Why the version should not be used; null when it is not deprecated."),
	)
}

// Edges of the NPMVersion.
func (NPMVersion) Edges() []ent.Edge {
	return append(versionEdges("npm_versions"),
		edge.To("dist_tags", NPMDistTag.Type).
			StorageKey(edge.Symbol("fk_npm_dist_tags_version")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
	)
}

// Indexes of the NPMVersion.
func (NPMVersion) Indexes() []ent.Index { return versionIndexes("npm_versions", "version") }

func versionAnnotations(table string) []schema.Annotation {
	return []schema.Annotation{entsql.Table(table), sizeCheck(table)}
}

func versionFields(coordinates ...ent.Field) []ent.Field {
	fields := []ent.Field{
		idField(),
		field.UUID("namespace_id", uuid.UUID{}).Immutable().
			Comment("The repository's namespace."),
		field.UUID("repository_id", uuid.UUID{}).Immutable(),
	}
	fields = append(fields, coordinates...)
	return append(fields,
		field.Int64("size_bytes").Min(0).Max(maxSize).
			Comment("Sum of its distinct blobs, in bytes."),
		softDeletedAtField(),
		createdAtField(),
	)
}

func versionEdges(ref string) []ent.Edge {
	return []ent.Edge{
		edge.From("repository", Repository.Type).Ref(ref).Field("repository_id").Unique().Required().Immutable(),
	}
}

// versionIndexes are the natural key, and what a recount reads: an index-only
// sum over the versions of a repository.
func versionIndexes(table, version string) []ent.Index {
	return []ent.Index{
		index.Fields("repository_id", "name", version).Unique().
			StorageKey("uq_" + table + "_repository_id_name_" + version),
		index.Fields("repository_id").
			StorageKey("index_" + table + "_on_repository_id").
			Annotations(entsql.IncludeColumns("size_bytes")),
	}
}
