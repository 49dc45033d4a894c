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
