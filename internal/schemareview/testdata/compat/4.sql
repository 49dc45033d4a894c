ALTER TABLE npm_versions RENAME COLUMN version TO release;
