-- What hangs on versions. It counts nothing: bytes are those of attached blobs.
--
-- Tags name a version by a name that moves. They repeat its repository_id and name,
-- which with the tag are their natural key. Their only foreign key is to the version,
-- which has one to the repository.
CREATE TABLE container_tags (
    id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    tag text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    manifest_id uuid NOT NULL,
    CONSTRAINT pk_container_tags PRIMARY KEY (id),
    CONSTRAINT fk_container_tags_manifest FOREIGN KEY (manifest_id) REFERENCES container_manifests (id)
);

CREATE UNIQUE INDEX uq_container_tags_repository_id_name_tag ON container_tags (repository_id, name, tag);

-- The deletion of a manifest looks for its tags.
CREATE INDEX index_container_tags_on_manifest_id ON container_tags (manifest_id);

CREATE TABLE npm_dist_tags (
    id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    tag text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version_id uuid NOT NULL,
    CONSTRAINT pk_npm_dist_tags PRIMARY KEY (id),
    CONSTRAINT fk_npm_dist_tags_version FOREIGN KEY (version_id) REFERENCES npm_versions (id)
);

CREATE UNIQUE INDEX uq_npm_dist_tags_repository_id_name_tag ON npm_dist_tags (repository_id, name, tag);

CREATE INDEX index_npm_dist_tags_on_version_id ON npm_dist_tags (version_id);

-- Null means not deprecated, so that no row is rewritten.
ALTER TABLE npm_versions
    ADD COLUMN deprecation text NULL;

-- The manifests that an image index refers to.
CREATE TABLE container_manifest_references (
    index_id uuid NOT NULL,
    child_id uuid NOT NULL,
    CONSTRAINT pk_container_manifest_references PRIMARY KEY (index_id, child_id),
    CONSTRAINT fk_container_manifest_references_index FOREIGN KEY (index_id) REFERENCES container_manifests (id),
    CONSTRAINT fk_container_manifest_references_child FOREIGN KEY (child_id) REFERENCES container_manifests (id)
);

-- Answers "does an index refer to this manifest", before it is deleted.
CREATE INDEX index_container_manifest_references_on_child_id ON container_manifest_references (child_id);

-- A file is found by its version: there are few in one. Its blob is attached to the
-- version once, however many of the files have it.
CREATE TABLE maven_files (
    id uuid NOT NULL,
    path text NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version_id uuid NOT NULL,
    CONSTRAINT pk_maven_files PRIMARY KEY (id),
    CONSTRAINT fk_maven_files_version FOREIGN KEY (version_id) REFERENCES maven_versions (id),
    CONSTRAINT ck_maven_files_size_bytes CHECK (size_bytes >= 0 AND size_bytes <= 1125899906842624)
);

CREATE UNIQUE INDEX uq_maven_files_version_id_path ON maven_files (version_id, path);

ALTER TABLE namespaces
    ADD COLUMN soft_deleted_at timestamptz NULL;
