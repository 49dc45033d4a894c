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
