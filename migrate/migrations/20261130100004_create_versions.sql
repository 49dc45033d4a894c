-- One row is one component, whatever its format. The natural key holds
-- soft-deleted rows too. The covering index lets a recount sum a repository
-- without visiting the table. Sizes are bounded by 2^50 (1 PiB), so that no sum
-- of them overflows a bigint.
CREATE TABLE container_manifests (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    digest bytea NOT NULL,
    size_bytes bigint NOT NULL,
    soft_deleted_at timestamptz NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_container_manifests PRIMARY KEY (id),
    CONSTRAINT fk_container_manifests_repository FOREIGN KEY (repository_id) REFERENCES repositories (id),
    CONSTRAINT ck_container_manifests_size_bytes CHECK (size_bytes >= 0 AND size_bytes <= 1125899906842624)
);

CREATE UNIQUE INDEX uq_container_manifests_repository_id_name_digest ON container_manifests (repository_id, name, digest);

CREATE INDEX index_container_manifests_on_repository_id ON container_manifests (repository_id) INCLUDE (size_bytes);

CREATE TABLE maven_versions (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    size_bytes bigint NOT NULL,
    soft_deleted_at timestamptz NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_maven_versions PRIMARY KEY (id),
    CONSTRAINT fk_maven_versions_repository FOREIGN KEY (repository_id) REFERENCES repositories (id),
    CONSTRAINT ck_maven_versions_size_bytes CHECK (size_bytes >= 0 AND size_bytes <= 1125899906842624)
);

CREATE UNIQUE INDEX uq_maven_versions_repository_id_name_version ON maven_versions (repository_id, name, version);

CREATE INDEX index_maven_versions_on_repository_id ON maven_versions (repository_id) INCLUDE (size_bytes);

CREATE TABLE npm_versions (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    repository_id uuid NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    size_bytes bigint NOT NULL,
    soft_deleted_at timestamptz NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_npm_versions PRIMARY KEY (id),
    CONSTRAINT fk_npm_versions_repository FOREIGN KEY (repository_id) REFERENCES repositories (id),
    CONSTRAINT ck_npm_versions_size_bytes CHECK (size_bytes >= 0 AND size_bytes <= 1125899906842624)
);

CREATE UNIQUE INDEX uq_npm_versions_repository_id_name_version ON npm_versions (repository_id, name, version);

CREATE INDEX index_npm_versions_on_repository_id ON npm_versions (repository_id) INCLUDE (size_bytes);
