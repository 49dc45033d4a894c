-- What each kind of program may do, as roles without a login. Run it as a superuser,
-- or as a role that may create roles and owns the database: before the first
-- migration for the migrator's sake, and after each for what it has added. It takes back
-- what the roles have beyond this file; run again it changes nothing.
--
-- A program logs in as a member that acts as the role, so that what it makes belongs
-- to the role and not to the login:
--
--   CREATE ROLE worker_1 LOGIN PASSWORD '...' IN ROLE stowage_worker;
--   ALTER ROLE worker_1 SET role = 'stowage_worker';
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['stowage_migrator', 'stowage_writer', 'stowage_worker', 'stowage_reader'] LOOP
        IF to_regrole(name) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION
                -- Somebody was faster; roles belong to the whole server.
                WHEN duplicate_object OR unique_violation THEN
                    NULL;
            END;
        END IF;
    END LOOP;
END
$$;

-- Applies migrations, and owns what they make. It is a member of the worker, which
-- owns the ledger.
DO $$
BEGIN
    EXECUTE format('GRANT CREATE ON DATABASE %I TO stowage_migrator', current_database());
    IF NOT pg_has_role('stowage_migrator', 'stowage_worker', 'MEMBER') THEN
        GRANT stowage_worker TO stowage_migrator;
    END IF;
END
$$;

GRANT USAGE, CREATE ON SCHEMA public TO stowage_migrator;

GRANT USAGE ON SCHEMA public TO stowage_writer, stowage_worker, stowage_reader;

DO $$
DECLARE
    partition regclass;
BEGIN
    IF to_regclass('public.storage_ledger') IS NULL THEN
        RAISE NOTICE 'the database is not migrated yet: run this again afterwards';
        RETURN;
    END IF;

    -- What an earlier version of this file gave, and this one does not, goes. One
    -- transaction with what follows, so nobody is refused meanwhile. Whoever wants more
    -- than these roles have grants it to a role of their own.
    REVOKE ALL ON ALL TABLES IN SCHEMA public, river FROM stowage_writer, stowage_worker, stowage_reader;

    -- The registry, through the client. Counters, markers and the ledger are not
    -- its to change. A new repository's counters it may insert, because the client
    -- names every column: a trigger refuses other values than zero of a role that may
    -- not UPDATE them. UPDATE of created_at is what locking a row takes; blobs are
    -- immutable by a trigger. It keeps the shadow of the blobs through triggers.
    GRANT SELECT, INSERT, UPDATE, DELETE ON namespaces, container_manifests, maven_versions, npm_versions TO stowage_writer;
    GRANT SELECT, INSERT, UPDATE, DELETE ON container_tags, npm_dist_tags, container_manifest_references, maven_files TO stowage_writer;
    GRANT SELECT, INSERT, DELETE, UPDATE (name, soft_deleted_at) ON repositories TO stowage_writer;
    GRANT SELECT, INSERT (namespace_id) ON namespace_statistics TO stowage_writer;
    GRANT SELECT, INSERT, DELETE, UPDATE (created_at) ON blob_storage_blobs TO stowage_writer;
    GRANT SELECT, INSERT, DELETE ON blob_storage_attachments, blob_storage_blobs_by_namespace TO stowage_writer;
    GRANT SELECT, INSERT, UPDATE ON reconciliation_requests TO stowage_writer;
    GRANT SELECT, INSERT ON deletion_requests TO stowage_writer;
    GRANT SELECT, INSERT, UPDATE, DELETE ON blob_storage_deletions TO stowage_writer;
    GRANT SELECT ON storage_ledger, usage_progress, usage_hours, usage_adjustments, usage_closings, atlas_schema_revisions TO stowage_writer;

    -- The workers. They read what is counted, write counters, delete what was asked to
    -- be deleted, and collect blobs; they publish nothing. UPDATE of created_at is what
    -- locking a row takes. Only the owner of the ledger can attach and drop its
    -- partitions.
    GRANT SELECT ON namespaces, repositories, container_manifests, maven_versions, npm_versions, blob_storage_blobs_by_namespace, atlas_schema_revisions TO stowage_worker;
    GRANT UPDATE (size_bytes, artifacts_count, last_reconciled_at) ON repositories TO stowage_worker;
    GRANT SELECT, INSERT (namespace_id), UPDATE (deduplicated_size_bytes, components_count, last_reconciled_at, reconciliation_marker) ON namespace_statistics TO stowage_worker;
    GRANT SELECT, INSERT, UPDATE, DELETE ON reconciliation_requests, held_corrections TO stowage_worker;
    GRANT SELECT, INSERT, UPDATE ON counter_buckets, backfills TO stowage_worker;
    GRANT SELECT, DELETE ON repositories, blob_storage_attachments, blob_storage_blobs_by_namespace TO stowage_worker;
    GRANT SELECT, DELETE, UPDATE (created_at) ON namespaces, container_manifests, maven_versions, npm_versions, blob_storage_blobs TO stowage_worker;
    GRANT SELECT, UPDATE, DELETE ON deletion_requests TO stowage_worker;
    GRANT SELECT, INSERT, UPDATE, DELETE ON blob_storage_deletions TO stowage_worker;
    GRANT SELECT, DELETE ON container_manifest_references, maven_files TO stowage_worker;
    GRANT SELECT, DELETE, UPDATE (created_at) ON container_tags, npm_dist_tags TO stowage_worker;
    -- History is added to and forgotten, and never restated.
    GRANT SELECT, INSERT, UPDATE ON usage_progress TO stowage_worker;
    GRANT SELECT, INSERT, DELETE ON usage_hours, usage_adjustments TO stowage_worker;
    GRANT SELECT, DELETE ON usage_closings TO stowage_worker;
    GRANT USAGE, CREATE ON SCHEMA partitions TO stowage_worker;
    ALTER TABLE storage_ledger OWNER TO stowage_worker;
    GRANT ALL ON storage_ledger TO stowage_worker;
    FOR partition IN
        SELECT inhrelid FROM pg_inherits WHERE inhparent = 'storage_ledger'::regclass
    LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO stowage_worker', partition);
    END LOOP;
    GRANT USAGE ON SCHEMA river TO stowage_worker;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA river TO stowage_worker;
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA river TO stowage_worker;

    -- Billing, dashboards, quotas; and the commands that show, explain and verify
    -- counters, which recount.
    GRANT SELECT ON namespaces, repositories, namespace_statistics, storage_ledger, reconciliation_requests, held_corrections, deletion_requests, blob_storage_deletions, backfills, atlas_schema_revisions TO stowage_reader;
    GRANT SELECT ON container_manifests, maven_versions, npm_versions, blob_storage_attachments, blob_storage_blobs_by_namespace, counter_buckets TO stowage_reader;
    GRANT SELECT ON usage_progress, usage_hours, usage_adjustments, usage_closings TO stowage_reader;
END
$$;
