ALTER TABLE repositories
    ALTER COLUMN kind TYPE integer;

ALTER TABLE repositories
    ALTER COLUMN size_bytes DROP DEFAULT;

ALTER TABLE repositories
    ALTER COLUMN artifacts_count DROP DEFAULT;

ALTER TABLE repositories
    ALTER COLUMN artifacts_count
    ADD GENERATED ALWAYS AS IDENTITY;

ALTER TABLE repositories
    ADD CONSTRAINT ck_repositories_name CHECK (name <> '') NOT VALID;

ALTER TABLE repositories ENABLE ROW LEVEL SECURITY;

ALTER TABLE repositories
    ADD COLUMN holder text NULL;

ALTER TABLE repositories
    ADD CONSTRAINT ck_repositories_holder CHECK (holder IS NOT NULL) NOT VALID;
