-- Repositories and namespaces that are being deleted, with all that is in them.
-- From the commit of its row on nothing is published into a scope any more. Its
-- batches move the row in their own transactions, and the last one deletes it. No
-- foreign key: the row must not hinder the deletion that it asks for.
CREATE TABLE deletion_requests (
    scope_id uuid NOT NULL,
    scope_kind smallint NOT NULL,
    versions_deleted bigint NOT NULL DEFAULT 0,
    blobs_deleted bigint NOT NULL DEFAULT 0,
    requested_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_deletion_requests PRIMARY KEY (scope_id),
    CONSTRAINT ck_deletion_requests_scope_kind CHECK (scope_kind >= 1 AND scope_kind <= 2)
);

-- Blobs that were collected, and whose content the registry has yet to delete from
-- its storage, from due_at on. Whoever deletes content holds the lock of the row
-- meanwhile; whoever stores the blob again deletes the row, and so waits for it. No
-- foreign key: the row outlives the namespace.
-- stowage:allow squawk/prefer-bigint-over-int the failures are the tries of one blob
CREATE TABLE blob_storage_deletions (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    failures integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL,
    CONSTRAINT pk_blob_storage_deletions PRIMARY KEY (namespace_id, sha256)
);

CREATE INDEX index_blob_storage_deletions_on_due_at ON blob_storage_deletions (due_at);

CREATE OR REPLACE FUNCTION stowage_keep_blob_content ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM public.blob_storage_deletions
    WHERE namespace_id = NEW.namespace_id
        AND sha256 = NEW.sha256;
    RETURN NULL;
END;
$$;

-- For every writer, raw SQL too: a blob that is stored again would lose its content.
CREATE TRIGGER trg_blob_storage_blobs_keep_content
    AFTER INSERT ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_keep_blob_content ();
