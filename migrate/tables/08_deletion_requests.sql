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
