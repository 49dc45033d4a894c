CREATE OR REPLACE FUNCTION stowage_namespace_lock_key (namespace_id uuid)
    RETURNS bigint
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        uuid_hash_extended(namespace_id, 0)
$$;
