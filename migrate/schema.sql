-- The whole schema after all migrations, for people to read and for Verify to
-- compare with. Written by "stowage migrate schema". Do not edit.

-- function public.stowage_bucket(uuid)
CREATE OR REPLACE FUNCTION public.stowage_bucket(namespace_id uuid)
 RETURNS integer
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    SELECT
        get_byte(sha256 (uuid_send(namespace_id)), 0)
$function$;

-- function public.stowage_close_usage()
CREATE OR REPLACE FUNCTION public.stowage_close_usage()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    INSERT INTO public.usage_closings (namespace_id, bytes, components)
    SELECT
        OLD.namespace_id,
        OLD.deduplicated_size_bytes,
        OLD.components_count
    WHERE
        TG_RELID = 'public.namespace_statistics'::regclass;
    RETURN NULL;
END;
$function$;

-- function public.stowage_create_namespace_statistics()
CREATE OR REPLACE FUNCTION public.stowage_create_namespace_statistics()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO public.namespace_statistics (namespace_id)
        VALUES (NEW.id)
    ON CONFLICT (namespace_id)
        DO NOTHING;
    RETURN NULL;
END;
$function$;

-- function public.stowage_keep_blob_content()
CREATE OR REPLACE FUNCTION public.stowage_keep_blob_content()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    DELETE FROM public.blob_storage_deletions
    WHERE namespace_id = NEW.namespace_id
        AND sha256 = NEW.sha256;
    RETURN NULL;
END;
$function$;

-- function public.stowage_lock_markers(uuid[])
CREATE OR REPLACE FUNCTION public.stowage_lock_markers(namespace_ids uuid[])
 RETURNS TABLE(namespace_id uuid, marker bigint)
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
            PERFORM
                set_config('synchronous_commit', 'on', TRUE);
        END IF;
        PERFORM
            pg_advisory_xact_lock_shared(keys.key)
        FROM ( SELECT DISTINCT
                public.stowage_namespace_lock_key (id) AS key
            FROM
                unnest(namespace_ids) AS id
            ORDER BY
                1) AS keys;
        RETURN QUERY SELECT DISTINCT
            ids.id,
            (
                SELECT
                    public.stowage_marker_micros (s.reconciliation_marker)
                FROM
                    public.namespace_statistics AS s
                WHERE
                    s.namespace_id = ids.id)
        FROM
            unnest(namespace_ids) AS ids (id);
        RETURN;
    END IF;
    RAISE EXCEPTION 'stowage_lock_markers in a transaction of isolation level %: its snapshot would hide the newest marker, so begin the transaction with ISOLATION LEVEL READ COMMITTED', current_setting('transaction_isolation')
        USING ERRCODE = 'invalid_transaction_state';
END;
$function$;

-- function public.stowage_marker_micros(timestamp with time zone)
CREATE OR REPLACE FUNCTION public.stowage_marker_micros(marker timestamp with time zone)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    SELECT
        (extract(epoch FROM marker - timestamptz 'epoch') * 1000000)::bigint
$function$;

-- function public.stowage_marker_time(bigint)
CREATE OR REPLACE FUNCTION public.stowage_marker_time(micros bigint)
 RETURNS timestamp with time zone
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    SELECT
        (timestamp 'epoch' + micros / 1000000 * interval '1 second' + micros % 1000000 * interval '1 microsecond') AT TIME ZONE 'UTC'
$function$;

-- function public.stowage_namespace_lock_key(uuid)
CREATE OR REPLACE FUNCTION public.stowage_namespace_lock_key(namespace_id uuid)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    SELECT
        uuid_hash_extended(namespace_id, 0)
$function$;

-- function public.stowage_put_blobs(uuid,bytea[],bigint[])
CREATE OR REPLACE FUNCTION public.stowage_put_blobs(namespace uuid, digests bytea[], sizes bigint[])
 RETURNS TABLE(digest bytea, size bigint, created boolean)
 LANGUAGE plpgsql
AS $function$
DECLARE
    i int := 0;
BEGIN
    FOREACH digest IN ARRAY digests LOOP
        i := i + 1;
        LOOP
            size := sizes[i];
            INSERT INTO public.blob_storage_blobs (namespace_id, sha256, size_bytes)
                VALUES (namespace, digest, size)
            ON CONFLICT
                DO NOTHING;
            created := FOUND;
            EXIT
            WHEN created;
            SELECT
                b.size_bytes INTO size
            FROM
                public.blob_storage_blobs AS b
            WHERE
                b.namespace_id = namespace
                AND b.sha256 = digest
            FOR KEY SHARE;
            EXIT
            WHEN FOUND;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END;
$function$;

-- function public.stowage_refuse_blob_change()
CREATE OR REPLACE FUNCTION public.stowage_refuse_blob_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION 'blob % of namespace % cannot be updated: a digest determines its content, so delete the row and insert another', encode(OLD.sha256, 'hex'), OLD.namespace_id
        USING ERRCODE = 'restrict_violation';
END;
$function$;

-- function public.stowage_refuse_forged_counters()
CREATE OR REPLACE FUNCTION public.stowage_refuse_forged_counters()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    forged text := CASE WHEN NEW.size_bytes <> 0
        AND NOT has_column_privilege(TG_RELID, 'size_bytes', 'UPDATE') THEN
        'size_bytes = ' || NEW.size_bytes
    WHEN NEW.artifacts_count <> 0
        AND NOT has_column_privilege(TG_RELID, 'artifacts_count', 'UPDATE') THEN
        'artifacts_count = ' || NEW.artifacts_count
    WHEN NEW.last_reconciled_at <> 'epoch'
        AND NOT has_column_privilege(TG_RELID, 'last_reconciled_at', 'UPDATE') THEN
        'last_reconciled_at = ' || NEW.last_reconciled_at
    END;
BEGIN
    IF forged IS NULL THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'repository % cannot be inserted with %: role "%" may not update that column, for counters change only through the accounting protocol; leave it out', NEW.id, forged, CURRENT_USER
        USING ERRCODE = 'insufficient_privilege';
END;
$function$;

-- function public.stowage_refuse_slug_change()
CREATE OR REPLACE FUNCTION public.stowage_refuse_slug_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION 'slug of namespace % cannot change from "%" to "%": it stands in URLs and in stored references; create another namespace instead', OLD.id, OLD.slug, NEW.slug
        USING ERRCODE = 'restrict_violation';
END;
$function$;

-- function public.stowage_shadow_blob_delete()
CREATE OR REPLACE FUNCTION public.stowage_shadow_blob_delete()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    DELETE FROM public.blob_storage_blobs_by_namespace
    WHERE namespace_id = OLD.namespace_id
        AND sha256 = OLD.sha256;
    RETURN NULL;
END;
$function$;

-- function public.stowage_shadow_blob_insert()
CREATE OR REPLACE FUNCTION public.stowage_shadow_blob_insert()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO public.blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
        VALUES (NEW.namespace_id, NEW.sha256, NEW.size_bytes);
    RETURN NULL;
END;
$function$;

-- table public.backfills
CREATE TABLE backfills (
    name text NOT NULL,
    state smallint NOT NULL,
    last_key text NOT NULL DEFAULT ''::text,
    rows_seen bigint NOT NULL DEFAULT 0,
    rows_changed bigint NOT NULL DEFAULT 0,
    rows_expected bigint NOT NULL DEFAULT 0,
    started_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    finished_at timestamp with time zone,
    CONSTRAINT pk_backfills PRIMARY KEY (name),
    CONSTRAINT ck_backfills_state CHECK (((state >= 1) AND (state <= 4)))
);

-- table public.blob_storage_attachments
CREATE TABLE blob_storage_attachments (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    repository_id uuid NOT NULL,
    version_table smallint NOT NULL,
    version_id uuid NOT NULL,
    CONSTRAINT pk_blob_storage_attachments PRIMARY KEY (version_id, version_table, sha256),
    CONSTRAINT ck_blob_storage_attachments_version_table CHECK (((version_table >= 1) AND (version_table <= 3)))
)
PARTITION BY HASH (sha256);
ALTER TABLE blob_storage_attachments ALTER COLUMN sha256 SET STORAGE PLAIN;

-- table public.blob_storage_blobs
CREATE TABLE blob_storage_blobs (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT pk_blob_storage_blobs PRIMARY KEY (namespace_id, sha256),
    CONSTRAINT ck_blob_storage_blobs_sha256 CHECK ((octet_length(sha256) = 32)),
    CONSTRAINT ck_blob_storage_blobs_size_bytes CHECK (((size_bytes >= 0) AND (size_bytes <= '1125899906842624'::bigint)))
)
PARTITION BY HASH (sha256);
ALTER TABLE blob_storage_blobs ALTER COLUMN sha256 SET STORAGE PLAIN;

-- table public.blob_storage_blobs_by_namespace
CREATE TABLE blob_storage_blobs_by_namespace (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    CONSTRAINT pk_blob_storage_blobs_by_namespace PRIMARY KEY (namespace_id, sha256)
)
PARTITION BY HASH (namespace_id);
ALTER TABLE blob_storage_blobs_by_namespace ALTER COLUMN sha256 SET STORAGE PLAIN;

-- table public.blob_storage_deletions
CREATE TABLE blob_storage_deletions (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    failures integer NOT NULL DEFAULT 0,
    due_at timestamp with time zone NOT NULL,
    CONSTRAINT pk_blob_storage_deletions PRIMARY KEY (namespace_id, sha256)
);

-- table public.container_manifest_references
CREATE TABLE container_manifest_references (
    index_id uuid NOT NULL,
    child_id uuid NOT NULL,
    CONSTRAINT pk_container_manifest_references PRIMARY KEY (index_id, child_id)
);

-- table public.container_manifests
CREATE TABLE container_manifests (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    digest bytea NOT NULL,
    size_bytes bigint NOT NULL,
    soft_deleted_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT pk_container_manifests PRIMARY KEY (id),
    CONSTRAINT ck_container_manifests_size_bytes CHECK (((size_bytes >= 0) AND (size_bytes <= '1125899906842624'::bigint)))
);

-- table public.container_tags
CREATE TABLE container_tags (
    id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    tag text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    manifest_id uuid NOT NULL,
    CONSTRAINT pk_container_tags PRIMARY KEY (id)
);

-- table public.counter_buckets
CREATE TABLE counter_buckets (
    bucket smallint NOT NULL,
    identity uuid NOT NULL,
    run_id text NOT NULL,
    CONSTRAINT pk_counter_buckets PRIMARY KEY (bucket),
    CONSTRAINT ck_counter_buckets_bucket CHECK (((bucket >= 0) AND (bucket <= 255)))
);

-- table public.deletion_requests
CREATE TABLE deletion_requests (
    scope_id uuid NOT NULL,
    scope_kind smallint NOT NULL,
    versions_deleted bigint NOT NULL DEFAULT 0,
    blobs_deleted bigint NOT NULL DEFAULT 0,
    requested_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT pk_deletion_requests PRIMARY KEY (scope_id),
    CONSTRAINT ck_deletion_requests_scope_kind CHECK (((scope_kind >= 1) AND (scope_kind <= 2)))
);

-- table public.held_corrections
CREATE TABLE held_corrections (
    scope_id uuid NOT NULL,
    scope_kind smallint NOT NULL,
    namespace_id uuid NOT NULL,
    seen timestamp with time zone NOT NULL,
    expected_bytes bigint NOT NULL,
    expected_components bigint NOT NULL,
    counted_bytes bigint NOT NULL,
    counted_components bigint NOT NULL,
    next_pass timestamp with time zone NOT NULL,
    approved_at timestamp with time zone,
    approved_by text,
    CONSTRAINT pk_held_corrections PRIMARY KEY (scope_id),
    CONSTRAINT ck_held_corrections_scope_kind CHECK (((scope_kind >= 1) AND (scope_kind <= 2)))
);

-- table public.maven_files
CREATE TABLE maven_files (
    id uuid NOT NULL,
    path text NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version_id uuid NOT NULL,
    CONSTRAINT pk_maven_files PRIMARY KEY (id),
    CONSTRAINT ck_maven_files_size_bytes CHECK (((size_bytes >= 0) AND (size_bytes <= '1125899906842624'::bigint)))
);

-- table public.maven_versions
CREATE TABLE maven_versions (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    size_bytes bigint NOT NULL,
    soft_deleted_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT pk_maven_versions PRIMARY KEY (id),
    CONSTRAINT ck_maven_versions_size_bytes CHECK (((size_bytes >= 0) AND (size_bytes <= '1125899906842624'::bigint)))
);

-- table public.namespace_statistics
CREATE TABLE namespace_statistics (
    namespace_id uuid NOT NULL,
    deduplicated_size_bytes bigint NOT NULL DEFAULT 0,
    components_count bigint NOT NULL DEFAULT 0,
    last_reconciled_at timestamp with time zone NOT NULL DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone,
    reconciliation_marker timestamp with time zone NOT NULL DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone,
    CONSTRAINT pk_namespace_statistics PRIMARY KEY (namespace_id)
)
WITH (fillfactor=70);

-- table public.namespaces
CREATE TABLE namespaces (
    id uuid NOT NULL,
    slug text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    soft_deleted_at timestamp with time zone,
    CONSTRAINT pk_namespaces PRIMARY KEY (id)
);

-- table public.npm_dist_tags
CREATE TABLE npm_dist_tags (
    id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    tag text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version_id uuid NOT NULL,
    CONSTRAINT pk_npm_dist_tags PRIMARY KEY (id)
);

-- table public.npm_versions
CREATE TABLE npm_versions (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    size_bytes bigint NOT NULL,
    soft_deleted_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    deprecation text,
    CONSTRAINT pk_npm_versions PRIMARY KEY (id),
    CONSTRAINT ck_npm_versions_size_bytes CHECK (((size_bytes >= 0) AND (size_bytes <= '1125899906842624'::bigint)))
);

-- table public.reconciliation_requests
CREATE TABLE reconciliation_requests (
    namespace_id uuid NOT NULL,
    marker timestamp with time zone NOT NULL,
    CONSTRAINT pk_reconciliation_requests PRIMARY KEY (namespace_id)
);

-- table public.repositories
CREATE TABLE repositories (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    name text NOT NULL,
    format smallint NOT NULL,
    kind smallint NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0,
    artifacts_count bigint NOT NULL DEFAULT 0,
    soft_deleted_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    last_reconciled_at timestamp with time zone NOT NULL DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone,
    CONSTRAINT pk_repositories PRIMARY KEY (id),
    CONSTRAINT ck_repositories_format CHECK (((format >= 1) AND (format <= 3))),
    CONSTRAINT ck_repositories_kind CHECK (((kind >= 1) AND (kind <= 3)))
);

-- table public.storage_ledger
CREATE TABLE storage_ledger (
    batch_id uuid NOT NULL,
    scope_id uuid NOT NULL,
    scope_kind smallint NOT NULL,
    namespace_id uuid NOT NULL,
    marker timestamp with time zone NOT NULL,
    bytes bigint NOT NULL,
    components bigint NOT NULL,
    emissions bigint NOT NULL,
    outcome smallint NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_storage_ledger PRIMARY KEY (batch_id, scope_id),
    CONSTRAINT ck_storage_ledger_outcome CHECK (((outcome >= 1) AND (outcome <= 4))),
    CONSTRAINT ck_storage_ledger_scope_kind CHECK (((scope_kind >= 1) AND (scope_kind <= 2)))
)
PARTITION BY RANGE (batch_id);

-- table public.usage_adjustments
CREATE TABLE usage_adjustments (
    namespace_id uuid NOT NULL,
    applied_at timestamp with time zone NOT NULL,
    kind smallint NOT NULL,
    batch_id uuid NOT NULL,
    bytes bigint NOT NULL,
    components bigint NOT NULL,
    CONSTRAINT pk_usage_adjustments PRIMARY KEY (namespace_id, applied_at, kind, batch_id),
    CONSTRAINT ck_usage_adjustments_kind CHECK (((kind >= 1) AND (kind <= 4)))
);

-- table public.usage_closings
CREATE TABLE usage_closings (
    namespace_id uuid NOT NULL,
    closed_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    bytes bigint NOT NULL,
    components bigint NOT NULL,
    CONSTRAINT pk_usage_closings PRIMARY KEY (namespace_id, closed_at)
);

-- table public.usage_hours
CREATE TABLE usage_hours (
    namespace_id uuid NOT NULL,
    hour timestamp with time zone NOT NULL,
    bytes_start bigint NOT NULL,
    components_start bigint NOT NULL,
    bytes_end bigint NOT NULL,
    components_end bigint NOT NULL,
    peak_bytes bigint NOT NULL,
    byte_seconds numeric NOT NULL,
    CONSTRAINT pk_usage_hours PRIMARY KEY (namespace_id, hour)
);

-- table public.usage_progress
CREATE TABLE usage_progress (
    id smallint NOT NULL,
    since timestamp with time zone NOT NULL,
    hour timestamp with time zone NOT NULL,
    after_namespace_id uuid NOT NULL,
    sealed timestamp with time zone NOT NULL,
    fence text[] NOT NULL,
    CONSTRAINT pk_usage_progress PRIMARY KEY (id),
    CONSTRAINT ck_usage_progress_id CHECK ((id = 1))
);

-- partitions public.blob_storage_attachments
-- 64 partitions of blob_storage_attachments, partitions.blob_storage_attachments_00 to partitions.blob_storage_attachments_63

-- partitions public.blob_storage_blobs
-- 64 partitions of blob_storage_blobs, partitions.blob_storage_blobs_00 to partitions.blob_storage_blobs_63

-- partitions public.blob_storage_blobs_by_namespace
-- 64 partitions of blob_storage_blobs_by_namespace, partitions.blob_storage_blobs_by_namespace_00 to partitions.blob_storage_blobs_by_namespace_63

-- foreign key public.fk_blob_storage_attachments_blob
ALTER TABLE blob_storage_attachments ADD CONSTRAINT fk_blob_storage_attachments_blob FOREIGN KEY (namespace_id, sha256) REFERENCES blob_storage_blobs(namespace_id, sha256);

-- foreign key public.fk_blob_storage_blobs_namespace
ALTER TABLE blob_storage_blobs ADD CONSTRAINT fk_blob_storage_blobs_namespace FOREIGN KEY (namespace_id) REFERENCES namespaces(id);

-- foreign key public.fk_container_manifest_references_child
ALTER TABLE container_manifest_references ADD CONSTRAINT fk_container_manifest_references_child FOREIGN KEY (child_id) REFERENCES container_manifests(id);

-- foreign key public.fk_container_manifest_references_index
ALTER TABLE container_manifest_references ADD CONSTRAINT fk_container_manifest_references_index FOREIGN KEY (index_id) REFERENCES container_manifests(id);

-- foreign key public.fk_container_manifests_repository
ALTER TABLE container_manifests ADD CONSTRAINT fk_container_manifests_repository FOREIGN KEY (repository_id) REFERENCES repositories(id);

-- foreign key public.fk_container_tags_manifest
ALTER TABLE container_tags ADD CONSTRAINT fk_container_tags_manifest FOREIGN KEY (manifest_id) REFERENCES container_manifests(id);

-- foreign key public.fk_held_corrections_namespace_statistics
ALTER TABLE held_corrections ADD CONSTRAINT fk_held_corrections_namespace_statistics FOREIGN KEY (namespace_id) REFERENCES namespace_statistics(namespace_id) ON DELETE CASCADE;

-- foreign key public.fk_maven_files_version
ALTER TABLE maven_files ADD CONSTRAINT fk_maven_files_version FOREIGN KEY (version_id) REFERENCES maven_versions(id);

-- foreign key public.fk_maven_versions_repository
ALTER TABLE maven_versions ADD CONSTRAINT fk_maven_versions_repository FOREIGN KEY (repository_id) REFERENCES repositories(id);

-- foreign key public.fk_namespace_statistics_namespace
ALTER TABLE namespace_statistics ADD CONSTRAINT fk_namespace_statistics_namespace FOREIGN KEY (namespace_id) REFERENCES namespaces(id) ON DELETE CASCADE;

-- foreign key public.fk_npm_dist_tags_version
ALTER TABLE npm_dist_tags ADD CONSTRAINT fk_npm_dist_tags_version FOREIGN KEY (version_id) REFERENCES npm_versions(id);

-- foreign key public.fk_npm_versions_repository
ALTER TABLE npm_versions ADD CONSTRAINT fk_npm_versions_repository FOREIGN KEY (repository_id) REFERENCES repositories(id);

-- foreign key public.fk_repositories_namespace
ALTER TABLE repositories ADD CONSTRAINT fk_repositories_namespace FOREIGN KEY (namespace_id) REFERENCES namespaces(id);

-- index public.index_blob_storage_attachments_on_namespace_id_and_sha256
CREATE INDEX index_blob_storage_attachments_on_namespace_id_and_sha256 ON ONLY public.blob_storage_attachments USING btree (namespace_id, sha256);

-- index public.index_blob_storage_blobs_by_namespace_on_namespace_id
CREATE INDEX index_blob_storage_blobs_by_namespace_on_namespace_id ON ONLY public.blob_storage_blobs_by_namespace USING btree (namespace_id) INCLUDE (size_bytes);

-- index public.index_blob_storage_deletions_on_due_at
CREATE INDEX index_blob_storage_deletions_on_due_at ON public.blob_storage_deletions USING btree (due_at);

-- index public.index_container_manifest_references_on_child_id
CREATE INDEX index_container_manifest_references_on_child_id ON public.container_manifest_references USING btree (child_id);

-- index public.index_container_manifests_on_repository_id
CREATE INDEX index_container_manifests_on_repository_id ON public.container_manifests USING btree (repository_id) INCLUDE (size_bytes);

-- index public.index_container_tags_on_manifest_id
CREATE INDEX index_container_tags_on_manifest_id ON public.container_tags USING btree (manifest_id);

-- index public.index_held_corrections_on_namespace_id
CREATE INDEX index_held_corrections_on_namespace_id ON public.held_corrections USING btree (namespace_id);

-- index public.index_maven_versions_on_repository_id
CREATE INDEX index_maven_versions_on_repository_id ON public.maven_versions USING btree (repository_id) INCLUDE (size_bytes);

-- index public.index_namespace_statistics_on_last_reconciled_at_and_ns_id
CREATE INDEX index_namespace_statistics_on_last_reconciled_at_and_ns_id ON public.namespace_statistics USING btree (last_reconciled_at, namespace_id);

-- index public.index_npm_dist_tags_on_version_id
CREATE INDEX index_npm_dist_tags_on_version_id ON public.npm_dist_tags USING btree (version_id);

-- index public.index_npm_versions_on_repository_id
CREATE INDEX index_npm_versions_on_repository_id ON public.npm_versions USING btree (repository_id) INCLUDE (size_bytes);

-- index public.index_storage_ledger_on_hour_and_scope_id
CREATE INDEX index_storage_ledger_on_hour_and_scope_id ON ONLY public.storage_ledger USING btree (date_trunc('hour'::text, (applied_at AT TIME ZONE 'UTC'::text)), scope_id) WHERE ((scope_kind = 1) AND (outcome = ANY (ARRAY[1, 4])));

-- index public.index_storage_ledger_on_scope_id_and_marker
CREATE INDEX index_storage_ledger_on_scope_id_and_marker ON ONLY public.storage_ledger USING btree (scope_id, marker);

-- index public.index_usage_adjustments_on_applied_at
CREATE INDEX index_usage_adjustments_on_applied_at ON public.usage_adjustments USING btree (applied_at);

-- index public.index_usage_hours_on_hour_and_namespace_id
CREATE INDEX index_usage_hours_on_hour_and_namespace_id ON public.usage_hours USING btree (hour, namespace_id);

-- index public.uq_container_manifests_repository_id_name_digest
CREATE UNIQUE INDEX uq_container_manifests_repository_id_name_digest ON public.container_manifests USING btree (repository_id, name, digest);

-- index public.uq_container_tags_repository_id_name_tag
CREATE UNIQUE INDEX uq_container_tags_repository_id_name_tag ON public.container_tags USING btree (repository_id, name, tag);

-- index public.uq_maven_files_version_id_path
CREATE UNIQUE INDEX uq_maven_files_version_id_path ON public.maven_files USING btree (version_id, path);

-- index public.uq_maven_versions_repository_id_name_version
CREATE UNIQUE INDEX uq_maven_versions_repository_id_name_version ON public.maven_versions USING btree (repository_id, name, version);

-- index public.uq_namespaces_slug
CREATE UNIQUE INDEX uq_namespaces_slug ON public.namespaces USING btree (slug);

-- index public.uq_npm_dist_tags_repository_id_name_tag
CREATE UNIQUE INDEX uq_npm_dist_tags_repository_id_name_tag ON public.npm_dist_tags USING btree (repository_id, name, tag);

-- index public.uq_npm_versions_repository_id_name_version
CREATE UNIQUE INDEX uq_npm_versions_repository_id_name_version ON public.npm_versions USING btree (repository_id, name, version);

-- index public.uq_repositories_namespace_id_name
CREATE UNIQUE INDEX uq_repositories_namespace_id_name ON public.repositories USING btree (namespace_id, name);

-- trigger public.trg_blob_storage_blobs_immutable
CREATE TRIGGER trg_blob_storage_blobs_immutable BEFORE UPDATE ON public.blob_storage_blobs FOR EACH ROW EXECUTE FUNCTION stowage_refuse_blob_change();

-- trigger public.trg_blob_storage_blobs_keep_content
CREATE TRIGGER trg_blob_storage_blobs_keep_content AFTER INSERT ON public.blob_storage_blobs FOR EACH ROW EXECUTE FUNCTION stowage_keep_blob_content();

-- trigger public.trg_blob_storage_blobs_shadow_delete
CREATE TRIGGER trg_blob_storage_blobs_shadow_delete AFTER DELETE ON public.blob_storage_blobs FOR EACH ROW EXECUTE FUNCTION stowage_shadow_blob_delete();

-- trigger public.trg_blob_storage_blobs_shadow_insert
CREATE TRIGGER trg_blob_storage_blobs_shadow_insert AFTER INSERT ON public.blob_storage_blobs FOR EACH ROW EXECUTE FUNCTION stowage_shadow_blob_insert();

-- trigger public.trg_namespace_statistics_close_usage
CREATE TRIGGER trg_namespace_statistics_close_usage AFTER DELETE ON public.namespace_statistics FOR EACH ROW WHEN (((old.deduplicated_size_bytes <> 0) OR (old.components_count <> 0))) EXECUTE FUNCTION stowage_close_usage();

-- trigger public.trg_namespaces_create_statistics
CREATE TRIGGER trg_namespaces_create_statistics AFTER INSERT ON public.namespaces FOR EACH ROW EXECUTE FUNCTION stowage_create_namespace_statistics();

-- trigger public.trg_namespaces_slug_immutable
CREATE TRIGGER trg_namespaces_slug_immutable BEFORE UPDATE ON public.namespaces FOR EACH ROW WHEN ((old.slug IS DISTINCT FROM new.slug)) EXECUTE FUNCTION stowage_refuse_slug_change();

-- trigger public.trg_repositories_guard_counters
CREATE TRIGGER trg_repositories_guard_counters AFTER INSERT ON public.repositories FOR EACH ROW WHEN (((new.size_bytes <> 0) OR (new.artifacts_count <> 0) OR (new.last_reconciled_at <> '1970-01-01 00:00:00+00'::timestamp with time zone))) EXECUTE FUNCTION stowage_refuse_forged_counters();

-- schema partitions
CREATE SCHEMA partitions;

-- schema river
CREATE SCHEMA river;

-- type river.river_job_state
CREATE TYPE river.river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');

-- sequence river.river_job_id_seq
CREATE SEQUENCE river.river_job_id_seq AS bigint INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1;

-- sequence river.river_notification_id_seq
CREATE SEQUENCE river.river_notification_id_seq AS bigint INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1;

-- function river.river_job_state_in_bitmask(bit,river.river_job_state)
CREATE OR REPLACE FUNCTION river.river_job_state_in_bitmask(bitmask bit, state river.river_job_state)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT CASE state
        WHEN 'available' THEN get_bit(bitmask, 7)
        WHEN 'cancelled' THEN get_bit(bitmask, 6)
        WHEN 'completed' THEN get_bit(bitmask, 5)
        WHEN 'discarded' THEN get_bit(bitmask, 4)
        WHEN 'pending'   THEN get_bit(bitmask, 3)
        WHEN 'retryable' THEN get_bit(bitmask, 2)
        WHEN 'running'   THEN get_bit(bitmask, 1)
        WHEN 'scheduled' THEN get_bit(bitmask, 0)
        ELSE 0
    END = 1;
$function$;

-- table river.river_job
CREATE TABLE river.river_job (
    id bigint NOT NULL DEFAULT nextval('river.river_job_id_seq'::regclass),
    state river.river_job_state NOT NULL DEFAULT 'available'::river.river_job_state,
    attempt smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 25,
    attempted_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    finalized_at timestamp with time zone,
    scheduled_at timestamp with time zone NOT NULL DEFAULT now(),
    priority smallint NOT NULL DEFAULT 1,
    args jsonb NOT NULL,
    attempted_by text[],
    errors jsonb[],
    kind text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb,
    queue text NOT NULL DEFAULT 'default'::text,
    tags character varying(255)[] NOT NULL DEFAULT '{}'::character varying[],
    unique_key bytea,
    unique_states bit(8),
    CONSTRAINT river_job_pkey PRIMARY KEY (id),
    CONSTRAINT finalized_or_finalized_at_null CHECK ((((finalized_at IS NULL) AND (state <> ALL (ARRAY['cancelled'::river.river_job_state, 'completed'::river.river_job_state, 'discarded'::river.river_job_state]))) OR ((finalized_at IS NOT NULL) AND (state = ANY (ARRAY['cancelled'::river.river_job_state, 'completed'::river.river_job_state, 'discarded'::river.river_job_state]))))),
    CONSTRAINT kind_length CHECK (((char_length(kind) > 0) AND (char_length(kind) < 128))),
    CONSTRAINT max_attempts_is_positive CHECK ((max_attempts > 0)),
    CONSTRAINT priority_in_range CHECK (((priority >= 1) AND (priority <= 4))),
    CONSTRAINT queue_length CHECK (((char_length(queue) > 0) AND (char_length(queue) < 128)))
);

-- table river.river_leader
CREATE UNLOGGED TABLE river.river_leader (
    elected_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    leader_id text NOT NULL,
    name text NOT NULL DEFAULT 'default'::text,
    CONSTRAINT river_leader_pkey PRIMARY KEY (name),
    CONSTRAINT leader_id_length CHECK (((char_length(leader_id) > 0) AND (char_length(leader_id) < 128))),
    CONSTRAINT name_length CHECK ((name = 'default'::text))
);

-- table river.river_migration
CREATE TABLE river.river_migration (
    line text NOT NULL,
    version bigint NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT river_migration_pkey1 PRIMARY KEY (line, version),
    CONSTRAINT line_length CHECK (((char_length(line) > 0) AND (char_length(line) < 128))),
    CONSTRAINT version_gte_1 CHECK ((version >= 1))
);

-- table river.river_notification
CREATE TABLE river.river_notification (
    id bigint NOT NULL DEFAULT nextval('river.river_notification_id_seq'::regclass),
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    payload text NOT NULL,
    topic text NOT NULL,
    CONSTRAINT river_notification_pkey PRIMARY KEY (id),
    CONSTRAINT topic_length CHECK (((length(topic) > 0) AND (length(topic) < 128)))
);

-- table river.river_queue
CREATE TABLE river.river_queue (
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb,
    paused_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP,
    CONSTRAINT river_queue_pkey PRIMARY KEY (name)
);

-- index river.river_job_args_index
CREATE INDEX river_job_args_index ON river.river_job USING gin (args);

-- index river.river_job_kind
CREATE INDEX river_job_kind ON river.river_job USING btree (kind);

-- index river.river_job_metadata_index
CREATE INDEX river_job_metadata_index ON river.river_job USING gin (metadata);

-- index river.river_job_prioritized_fetching_index
CREATE INDEX river_job_prioritized_fetching_index ON river.river_job USING btree (state, queue, priority, scheduled_at, id);

-- index river.river_job_state_and_finalized_at_index
CREATE INDEX river_job_state_and_finalized_at_index ON river.river_job USING btree (state, finalized_at) WHERE (finalized_at IS NOT NULL);

-- index river.river_job_unique_idx
CREATE UNIQUE INDEX river_job_unique_idx ON river.river_job USING btree (unique_key) WHERE ((unique_key IS NOT NULL) AND (unique_states IS NOT NULL) AND river.river_job_state_in_bitmask(unique_states, state));

-- index river.river_notification_created_at_idx
CREATE INDEX river_notification_created_at_idx ON river.river_notification USING btree (created_at);

-- index river.river_notification_topic_id_idx
CREATE INDEX river_notification_topic_id_idx ON river.river_notification USING btree (topic, id);
