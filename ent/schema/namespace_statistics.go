package schema

import (
	"context"
	"fmt"

	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/edge"
	"entgo.io/ent/schema/field"
	"entgo.io/ent/schema/index"
	"github.com/google/uuid"
)

// NamespaceStatistics is the one row of counters of a namespace. Its id is the
// namespace's: read it with Get(ctx, namespaceID). To reach the namespace use
// QueryNamespace; WithNamespace loads nothing, because the foreign key is the
// primary key itself.
type NamespaceStatistics struct{ ent.Schema }

// Annotations of the NamespaceStatistics.
func (NamespaceStatistics) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("namespace_statistics")}
}

// Fields of the NamespaceStatistics.
func (NamespaceStatistics) Fields() []ent.Field {
	return []ent.Field{
		field.UUID("id", uuid.UUID{}).StorageKey("namespace_id").Immutable(),
		counterField("deduplicated_size_bytes", "Sum of the namespace's distinct blobs, moved by the accounting protocol only. It may be below zero for a moment."),
		counterField("components_count", "Versions in its hosted and remote repositories, moved by the accounting protocol only."),
		epochField("last_reconciled_at", "Marker of the reconciliation whose result the row holds; 'epoch' means none yet."),
		epochField("reconciliation_marker", "Start of the newest reconciliation begun for this namespace."),
	}
}

// Edges of the NamespaceStatistics.
func (NamespaceStatistics) Edges() []ent.Edge {
	return []ent.Edge{
		// No back-reference: the column is the primary key, so an edge from the
		// namespace would add a second unique index.
		edge.To("namespace", Namespace.Type).Unique().Required().Immutable().
			StorageKey(edge.Column("namespace_id"), edge.Symbol("fk_namespace_statistics_namespace")).
			Annotations(entsql.OnDelete(entsql.Cascade)),
	}
}

// Indexes of the NamespaceStatistics.
func (NamespaceStatistics) Indexes() []ent.Index {
	return []ent.Index{
		// The second column is a cursor over a tie: many rows share 'epoch'.
		index.Fields("last_reconciled_at", "id").
			StorageKey("index_namespace_statistics_on_last_reconciled_at_and_ns_id"),
	}
}

// Hooks of the NamespaceStatistics.
func (NamespaceStatistics) Hooks() []ent.Hook {
	return []ent.Hook{func(ent.Mutator) ent.Mutator {
		return ent.MutateFunc(func(_ context.Context, m ent.Mutation) (ent.Value, error) {
			return nil, fmt.Errorf("%s of %s refused: the row is made with its namespace, and only the accounting protocol moves it", m.Op(), m.Type())
		})
	}}
}
