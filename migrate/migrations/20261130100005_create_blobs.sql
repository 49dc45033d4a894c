-- Children of partitioned tables live in a schema of their own, out of sight of
-- a connection that is bound to search_path=public.
CREATE SCHEMA partitions;

-- A digest is 32 bytes and never toasted: with STORAGE PLAIN the partitions
-- carry no TOAST table each.
CREATE TABLE blob_storage_blobs (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_blob_storage_blobs PRIMARY KEY (namespace_id, sha256),
    CONSTRAINT fk_blob_storage_blobs_namespace FOREIGN KEY (namespace_id) REFERENCES namespaces (id),
    CONSTRAINT ck_blob_storage_blobs_sha256 CHECK (octet_length(sha256) = 32),
    CONSTRAINT ck_blob_storage_blobs_size_bytes CHECK (size_bytes >= 0 AND size_bytes <= 1125899906842624)
)
PARTITION BY HASH (sha256);

ALTER TABLE blob_storage_blobs
    ALTER COLUMN sha256 SET STORAGE PLAIN;

-- One row says that a version uses a blob. The version is named by its table's
-- number (1 container_manifests, 2 maven_versions, 3 npm_versions) and its id;
-- no foreign key can point into one of three tables. There is none to
-- repositories either: the version already belongs to one.
CREATE TABLE blob_storage_attachments (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    repository_id uuid NOT NULL,
    version_table smallint NOT NULL,
    version_id uuid NOT NULL,
    CONSTRAINT pk_blob_storage_attachments PRIMARY KEY (version_id, version_table, sha256),
    CONSTRAINT fk_blob_storage_attachments_blob FOREIGN KEY (namespace_id, sha256) REFERENCES blob_storage_blobs (namespace_id, sha256),
    CONSTRAINT ck_blob_storage_attachments_version_table CHECK (version_table >= 1 AND version_table <= 3)
)
PARTITION BY HASH (sha256);

ALTER TABLE blob_storage_attachments
    ALTER COLUMN sha256 SET STORAGE PLAIN;

-- Answers "is this blob still attached", for the foreign key and the collector.
CREATE INDEX index_blob_storage_attachments_on_namespace_id_and_sha256 ON blob_storage_attachments (namespace_id, sha256);

-- The blobs again, divided by namespace: the recount of one namespace reads one
-- partition, where the blobs themselves are spread over all 64.
CREATE TABLE blob_storage_blobs_by_namespace (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    CONSTRAINT pk_blob_storage_blobs_by_namespace PRIMARY KEY (namespace_id, sha256)
)
PARTITION BY HASH (namespace_id);

ALTER TABLE blob_storage_blobs_by_namespace
    ALTER COLUMN sha256 SET STORAGE PLAIN;

-- Covers the sum of a namespace, so that it visits no table page.
CREATE INDEX index_blob_storage_blobs_by_namespace_on_namespace_id ON blob_storage_blobs_by_namespace (namespace_id) INCLUDE (size_bytes);

DO $$
DECLARE
    parent text;
BEGIN
    FOREACH parent IN ARRAY ARRAY['blob_storage_blobs', 'blob_storage_attachments', 'blob_storage_blobs_by_namespace'] LOOP
        FOR part IN 0..63 LOOP
            EXECUTE format('CREATE TABLE partitions.%I PARTITION OF %I FOR VALUES WITH (MODULUS 64, REMAINDER %s)', parent || '_' || to_char(part, 'FM00'), parent, part);
        END LOOP;
    END LOOP;
END;
$$;

-- A plain INSERT: a row that is there already means that the shadow has drifted,
-- which must be seen and not be covered up.
CREATE OR REPLACE FUNCTION stowage_shadow_blob_insert ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO public.blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
        VALUES (NEW.namespace_id, NEW.sha256, NEW.size_bytes);
    RETURN NULL;
END;
$$;

CREATE TRIGGER trg_blob_storage_blobs_shadow_insert
    AFTER INSERT ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_shadow_blob_insert ();

CREATE OR REPLACE FUNCTION stowage_shadow_blob_delete ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM public.blob_storage_blobs_by_namespace
    WHERE namespace_id = OLD.namespace_id
        AND sha256 = OLD.sha256;
    RETURN NULL;
END;
$$;

CREATE TRIGGER trg_blob_storage_blobs_shadow_delete
    AFTER DELETE ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_shadow_blob_delete ();

CREATE OR REPLACE FUNCTION stowage_refuse_blob_change ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'blob % of namespace % cannot be updated: a digest determines its content, so delete the row and insert another', encode(OLD.sha256, 'hex'), OLD.namespace_id
        USING ERRCODE = 'restrict_violation';
END;
$$;

-- The shadow and the sizes of versions rely on it: an update would leave both behind.
CREATE TRIGGER trg_blob_storage_blobs_immutable
    BEFORE UPDATE ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_refuse_blob_change ();

-- Stores blobs that are not there, and leaves every one of them locked against
-- the collector, so that the caller can attach them. One digest after the other,
-- and the caller gives them in ascending order: whoever waits for a blob holds
-- none behind it, so neither two calls nor a call and the collector, which locks
-- in the same order, can deadlock. All of them in one INSERT would hold the new
-- ones while it waits for the others.
--
-- A blob that was there and is collected before it is locked is stored again.
-- size is the one stored, created says whether this call stored it.
CREATE OR REPLACE FUNCTION stowage_put_blobs (namespace uuid, digests bytea[], sizes bigint[])
    RETURNS TABLE (
        digest bytea,
        size bigint,
        created boolean)
    LANGUAGE plpgsql
    VOLATILE
    AS $$
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
$$;
