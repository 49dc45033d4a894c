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

// Repository holds versions of one format in a namespace.
type Repository struct{ ent.Schema }

// Annotations of the Repository.
func (Repository) Annotations() []schema.Annotation {
	return []schema.Annotation{
		entsql.Table("repositories"),
		entsql.Annotation{Checks: map[string]string{
			"ck_repositories_format": "format >= 1 AND format <= 3",
			"ck_repositories_kind":   "kind >= 1 AND kind <= 3",
		}},
	}
}

// Fields of the Repository.
func (Repository) Fields() []ent.Field {
	return []ent.Field{
		idField(),
		field.UUID("namespace_id", uuid.UUID{}).Immutable(),
		field.String("name").SchemaType(text).NotEmpty(),
		field.Int16("format").GoType(schematype.Format(0)).Immutable(),
		field.Int16("kind").GoType(schematype.Kind(0)).Immutable(),
		counterField("size_bytes", "Sum of its versions' size_bytes (logical bytes), moved by the accounting protocol only."),
		counterField("artifacts_count", "How many versions it holds, moved by the accounting protocol only."),
		epochField("last_reconciled_at", "Marker of the reconciliation whose result the row holds; 'epoch' means none yet."),
		softDeletedAtField(),
		createdAtField(),
	}
}

// Edges of the Repository.
func (Repository) Edges() []ent.Edge {
	return []ent.Edge{
		edge.From("namespace", Namespace.Type).Ref("repositories").Field("namespace_id").Unique().Required().Immutable(),
		edge.To("container_manifests", ContainerManifest.Type).
			StorageKey(edge.Symbol("fk_container_manifests_repository")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
		edge.To("maven_versions", MavenVersion.Type).
			StorageKey(edge.Symbol("fk_maven_versions_repository")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
		edge.To("npm_versions", NPMVersion.Type).
			StorageKey(edge.Symbol("fk_npm_versions_repository")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
	}
}

// Indexes of the Repository.
func (Repository) Indexes() []ent.Index {
	return []ent.Index{
		index.Fields("namespace_id", "name").Unique().StorageKey("uq_repositories_namespace_id_name"),
	}
}

// Hooks of the Repository.
func (Repository) Hooks() []ent.Hook {
	return []ent.Hook{rejectCounters("size_bytes", "artifacts_count", "last_reconciled_at")}
}
