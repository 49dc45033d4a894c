ALTER TABLE repositories
    ADD CONSTRAINT ck_repositories_name CHECK (name <> '');
