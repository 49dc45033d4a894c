ALTER TABLE maven_versions
    ALTER COLUMN version TYPE varchar(200);
