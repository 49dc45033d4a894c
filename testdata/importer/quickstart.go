package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
)

// quickstart is the example of the README, word for word.
func quickstart(ctx context.Context, pool *pgxpool.Pool, redis rueidis.Client, digest schematype.Digest) (err error) {
	db, err := entdb.New(entdb.Config{Pool: pool, Redis: redis, Logger: slog.Default(), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }() // writes what waits
	acme := db.Namespace.Create().SetSlug("acme").SaveX(ctx)
	repo := db.Repository.Create().SetNamespace(acme).SetName("npm-internal").
		SetFormat(schematype.FormatNPM).SetKind(schematype.KindHosted).SaveX(ctx)
	err = db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.Publish(ctx, tx, entpublish.Version{
			Ref:   entpublish.Ref{RepositoryID: repo.ID, Name: "ms", Version: "0.1.0"},
			Blobs: []entpublish.Blob{{Digest: digest, Size: 81920}},
		})
		return err // an error rolls back, and nothing is counted
	})
	if err != nil {
		return err
	}
	usage, err := db.NamespaceUsage(ctx, acme.ID)
	fmt.Println(usage.Total()) // {81920 1}: the row, and what is still buffered
	return err
}
