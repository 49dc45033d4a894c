ALTER TABLE maven_versions
    ADD COLUMN note text NULL;

UPDATE
    maven_versions
SET
    note = name;
