-- Ids are UUIDv7 made by the application, so they have no default here.
CREATE TABLE namespaces (
    id uuid NOT NULL,
    slug text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_namespaces PRIMARY KEY (id)
);

CREATE UNIQUE INDEX uq_namespaces_slug ON namespaces (slug);

CREATE OR REPLACE FUNCTION stowage_refuse_slug_change ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'slug of namespace % cannot change from "%" to "%": it stands in URLs and in stored references; create another namespace instead', OLD.id, OLD.slug, NEW.slug
        USING ERRCODE = 'restrict_violation';
END;
$$;

-- The generated client cannot name the column in an update. The trigger holds
-- the rule for every other writer. It has no column list, because a list would
-- let a change pass that another BEFORE trigger makes.
CREATE TRIGGER trg_namespaces_slug_immutable
    BEFORE UPDATE ON namespaces
    FOR EACH ROW
    WHEN (OLD.slug IS DISTINCT FROM NEW.slug)
    EXECUTE FUNCTION stowage_refuse_slug_change ();

-- The foreign key names no action: a namespace that still has repositories
-- must not be deletable, or their content would go uncounted.
CREATE TABLE repositories (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    name text NOT NULL,
    format smallint NOT NULL,
    kind smallint NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0,
    artifacts_count bigint NOT NULL DEFAULT 0,
    soft_deleted_at timestamptz NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_repositories PRIMARY KEY (id),
    CONSTRAINT fk_repositories_namespace FOREIGN KEY (namespace_id) REFERENCES namespaces (id),
    CONSTRAINT ck_repositories_format CHECK (format >= 1 AND format <= 3),
    CONSTRAINT ck_repositories_kind CHECK (kind >= 1 AND kind <= 3)
);

-- Soft-deleted repositories keep their name: restoring one must not collide.
CREATE UNIQUE INDEX uq_repositories_namespace_id_name ON repositories (namespace_id, name);
