CREATE OR REPLACE FUNCTION stowage_bucket (namespace_id uuid)
    RETURNS int
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        get_byte(sha256 (uuid_send(namespace_id)), 1)
$$;

ALTER TABLE counter_buckets
    ADD COLUMN note text NULL;
