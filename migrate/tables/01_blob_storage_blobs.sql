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
