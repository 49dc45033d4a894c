ALTER TABLE repositories
    ADD COLUMN holder text NOT NULL;
