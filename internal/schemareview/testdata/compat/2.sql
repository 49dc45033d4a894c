ALTER TABLE counter_buckets RENAME TO buckets;
