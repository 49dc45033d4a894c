ALTER TABLE maven_versions
    DROP COLUMN version;

ALTER TABLE maven_versions
    DROP CONSTRAINT fk_maven_versions_repository;
