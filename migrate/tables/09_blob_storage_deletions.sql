-- Blobs that were collected, and whose content the registry has yet to delete from
-- its storage, from due_at on. Whoever deletes content holds the lock of the row
-- meanwhile; whoever stores the blob again deletes the row, and so waits for it. No
-- foreign key: the row outlives the namespace.
CREATE TABLE blob_storage_deletions (
    namespace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    failures integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL,
    CONSTRAINT pk_blob_storage_deletions PRIMARY KEY (namespace_id, sha256)
);

CREATE INDEX index_blob_storage_deletions_on_due_at ON blob_storage_deletions (due_at);
