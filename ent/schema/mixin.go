package schema

import (
	"context"
	"fmt"
	"time"

	"entgo.io/ent"
	"entgo.io/ent/dialect"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema/field"
	"github.com/google/uuid"
)

// Postgres column types that Ent would choose otherwise.
var (
	text        = map[string]string{dialect.Postgres: "text"}
	timestamptz = map[string]string{dialect.Postgres: "timestamptz"}
	bytea       = map[string]string{dialect.Postgres: "bytea"}
)

// maxSize bounds every size to 2^50 bytes (1 PiB), so that no sum of them
// overflows an int64 inside Redis, where scripts are not rolled back.
const maxSize = 1 << 50

func sizeCheck(table string) entsql.Annotation {
	return entsql.Annotation{Checks: map[string]string{
		"ck_" + table + "_size_bytes": fmt.Sprintf("size_bytes >= 0 AND size_bytes <= %d", int64(maxSize)),
	}}
}

// idField is a UUIDv7 made by the application, so that ids of new rows are
// known before they are written and index pages fill from the right.
func idField() ent.Field {
	return field.UUID("id", uuid.UUID{}).
		Default(func() uuid.UUID { return uuid.Must(uuid.NewV7()) }).
		Immutable()
}

func createdAtField() ent.Field {
	return field.Time("created_at").
		SchemaType(timestamptz).
		Default(time.Now).
		Annotations(entsql.DefaultExpr("now()")).
		Immutable()
}

func updatedAtField() ent.Field {
	return field.Time("updated_at").
		SchemaType(timestamptz).
		Default(time.Now).
		UpdateDefault(time.Now).
		Annotations(entsql.DefaultExpr("now()"))
}

func softDeletedAtField() ent.Field {
	return field.Time("soft_deleted_at").SchemaType(timestamptz).Optional().Nillable().
		Comment("When the row was soft-deleted. It counts until it is purged.")
}

// epochField is a timestamptz NOT NULL DEFAULT 'epoch' that only the
// accounting protocol moves: 'epoch' means never.
func epochField(name, comment string) ent.Field {
	return field.Time(name).
		SchemaType(timestamptz).
		Default(func() time.Time { return time.Unix(0, 0).UTC() }).
		Annotations(entsql.DefaultExpr("'epoch'")).
		Immutable().
		Comment(comment)
}

func counterField(name, comment string) ent.Field {
	return field.Int64(name).Default(0).Immutable().Comment(comment)
}

// rejectCounters refuses a create that gives a counter or a protocol column a
// value: they change only through the accounting protocol. Updates cannot name
// them at all, because the fields are immutable.
func rejectCounters(fields ...string) ent.Hook {
	return func(next ent.Mutator) ent.Mutator {
		return ent.MutateFunc(func(ctx context.Context, m ent.Mutation) (ent.Value, error) {
			for _, name := range fields {
				if v, ok := m.Field(name); ok && !isStart(v) {
					return nil, fmt.Errorf("%s.%s cannot be set to %v: counters change only through the accounting protocol, so leave the field out", m.Type(), name, v)
				}
			}
			return next.Mutate(ctx, m)
		})
	}
}

// isStart reports whether v is the value with which every row begins.
func isStart(v ent.Value) bool {
	switch v := v.(type) {
	case int64:
		return v == 0
	case time.Time:
		return v.Equal(time.Unix(0, 0))
	default:
		return false
	}
}
