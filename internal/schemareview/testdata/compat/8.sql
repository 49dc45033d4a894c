DROP FUNCTION stowage_lock_markers (uuid[]);

DROP FUNCTION stowage_marker_time (bigint);

CREATE OR REPLACE FUNCTION stowage_marker_time (seconds double precision)
    RETURNS timestamptz
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        to_timestamp(seconds)
$$;

DROP FUNCTION stowage_bucket (uuid);

CREATE OR REPLACE FUNCTION stowage_bucket (namespace_id uuid)
    RETURNS bigint
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        get_byte(sha256 (uuid_send(namespace_id)), 0)::bigint
$$;
