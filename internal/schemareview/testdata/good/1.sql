-- A constant default is kept in the catalog: no row is rewritten.
ALTER TABLE repositories
    ADD COLUMN visibility smallint NOT NULL DEFAULT 1;

ALTER TABLE repositories
    ADD COLUMN description text NULL;

ALTER TABLE repositories
    ADD CONSTRAINT ck_repositories_visibility CHECK (visibility >= 1 AND visibility <= 2) NOT VALID;
