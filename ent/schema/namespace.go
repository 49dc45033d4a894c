// Package schema declares the entities from which the client in package ent
// is generated. It imports no generated code, and its hooks only reject:
// hooks that count are registered at run time by ent/entdb.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/edge"
	"entgo.io/ent/schema/field"
	"entgo.io/ent/schema/index"
)

// Namespace is what is billed and what has a quota: it owns repositories.
type Namespace struct{ ent.Schema }

// Annotations of the Namespace.
func (Namespace) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("namespaces")}
}

// Fields of the Namespace.
func (Namespace) Fields() []ent.Field {
	return []ent.Field{
		idField(),
		field.String("slug").SchemaType(text).NotEmpty().Immutable().
			Comment("The name in URLs: unique, and never changed (a trigger refuses it in raw SQL too)."),
		softDeletedAtField(),
		createdAtField(),
	}
}

// Edges of the Namespace.
func (Namespace) Edges() []ent.Edge {
	return []ent.Edge{
		edge.To("repositories", Repository.Type).
			StorageKey(edge.Symbol("fk_repositories_namespace")).
			Annotations(entsql.OnDelete(entsql.NoAction)),
	}
}

// Indexes of the Namespace.
func (Namespace) Indexes() []ent.Index {
	return []ent.Index{
		index.Fields("slug").Unique().StorageKey("uq_namespaces_slug"),
	}
}
