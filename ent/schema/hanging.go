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

// What hangs on versions counts nothing: bytes are those of attached blobs.

// ContainerTag is a name that moves from manifest to manifest.
type ContainerTag struct{ ent.Schema }

// Annotations of the ContainerTag.
func (ContainerTag) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("container_tags")}
}

// Fields of the ContainerTag.
func (ContainerTag) Fields() []ent.Field { return tagFields("manifest_id", "The image's name.") }

// Edges of the ContainerTag.
func (ContainerTag) Edges() []ent.Edge {
	return []ent.Edge{
		edge.From("manifest", ContainerManifest.Type).Ref("tags").Field("manifest_id").Unique().Required(),
	}
}

// Indexes of the ContainerTag.
func (ContainerTag) Indexes() []ent.Index { return tagIndexes("container_tags", "manifest_id") }

// NPMDistTag is a name, such as latest, that moves from version to version.
type NPMDistTag struct{ ent.Schema }

// Annotations of the NPMDistTag.
func (NPMDistTag) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("npm_dist_tags")}
}

// Fields of the NPMDistTag.
func (NPMDistTag) Fields() []ent.Field { return tagFields("version_id", "The package's name.") }

// Edges of the NPMDistTag.
func (NPMDistTag) Edges() []ent.Edge {
	return []ent.Edge{
		edge.From("version", NPMVersion.Type).Ref("dist_tags").Field("version_id").Unique().Required(),
	}
}

// Indexes of the NPMDistTag.
func (NPMDistTag) Indexes() []ent.Index { return tagIndexes("npm_dist_tags", "version_id") }

func tagFields(version, name string) []ent.Field {
	return []ent.Field{
		idField(),
		field.UUID("repository_id", uuid.UUID{}).Immutable().
			Comment("The version's repository."),
		field.String("name").SchemaType(text).NotEmpty().Immutable().Comment(name),
		field.String("tag").SchemaType(text).NotEmpty().Immutable(),
		field.UUID(version, uuid.UUID{}),
		createdAtField(),
		updatedAtField(),
	}
}

// tagIndexes are the natural key, and what the deletion of a version asks.
func tagIndexes(table, version string) []ent.Index {
	return []ent.Index{
		index.Fields("repository_id", "name", "tag").Unique().
			StorageKey("uq_" + table + "_repository_id_name_tag"),
		index.Fields(version).StorageKey("index_" + table + "_on_" + version),
	}
}

// ContainerManifestReference says that an image index has a manifest as a child.
type ContainerManifestReference struct{ ent.Schema }

// Annotations of the ContainerManifestReference.
func (ContainerManifestReference) Annotations() []schema.Annotation {
	return []schema.Annotation{
		entsql.Table("container_manifest_references"),
		field.ID("index_id", "child_id"),
	}
}

// Fields of the ContainerManifestReference.
func (ContainerManifestReference) Fields() []ent.Field {
	return []ent.Field{
		field.UUID("index_id", uuid.UUID{}).Immutable(),
		field.UUID("child_id", uuid.UUID{}).Immutable(),
	}
}

// Edges of the ContainerManifestReference.
func (ContainerManifestReference) Edges() []ent.Edge {
	return []ent.Edge{
		edge.To("index", ContainerManifest.Type).Field("index_id").Unique().Required().Immutable().
			StorageKey(edge.Symbol("fk_container_manifest_references_index")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
		edge.To("child", ContainerManifest.Type).Field("child_id").Unique().Required().Immutable().
			StorageKey(edge.Symbol("fk_container_manifest_references_child")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
	}
}

// Indexes of the ContainerManifestReference.
func (ContainerManifestReference) Indexes() []ent.Index {
	return []ent.Index{
		index.Fields("child_id").StorageKey("index_container_manifest_references_on_child_id"),
	}
}

// MavenFile is a file of a Maven version, whose blob the version has attached.
type MavenFile struct{ ent.Schema }

// Annotations of the MavenFile.
func (MavenFile) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("maven_files"), sizeCheck("maven_files")}
}

// Fields of the MavenFile.
func (MavenFile) Fields() []ent.Field {
	return []ent.Field{
		idField(),
		field.UUID("version_id", uuid.UUID{}).Immutable(),
		field.String("path").SchemaType(text).NotEmpty().Immutable().
			Comment("The file's path below the version's folder."),
		field.Other("sha256", schematype.Digest{}).SchemaType(bytea).
			Comment("Digest of the blob that is its content."),
		field.Int64("size_bytes").Min(0).Max(maxSize),
		createdAtField(),
		updatedAtField(),
	}
}

// Edges of the MavenFile.
func (MavenFile) Edges() []ent.Edge {
	return []ent.Edge{
		edge.From("version", MavenVersion.Type).Ref("files").Field("version_id").Unique().Required().Immutable(),
	}
}

// Indexes of the MavenFile.
func (MavenFile) Indexes() []ent.Index {
	return []ent.Index{
		index.Fields("version_id", "path").Unique().StorageKey("uq_maven_files_version_id_path"),
	}
}
