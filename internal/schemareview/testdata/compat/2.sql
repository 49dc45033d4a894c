ALTER TABLE counter_buckets RENAME TO buckets;

ALTER TABLE repositories RENAME CONSTRAINT fk_repositories_namespace TO fk_repositories_owner;
