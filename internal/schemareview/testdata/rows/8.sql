ALTER TABLE npm_versions
    ADD CONSTRAINT uq_npm_versions_name UNIQUE (name);
