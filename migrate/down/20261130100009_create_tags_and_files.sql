-- The way back from create_tags_and_files.
ALTER TABLE namespaces
    DROP COLUMN soft_deleted_at;

DROP TABLE maven_files;

DROP TABLE container_manifest_references;

ALTER TABLE npm_versions
    DROP COLUMN deprecation;

DROP TABLE npm_dist_tags;

DROP TABLE container_tags;
