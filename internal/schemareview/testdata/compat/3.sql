ALTER TABLE maven_versions
    DROP COLUMN version;
