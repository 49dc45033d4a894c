-- By way of an interval, because extract from a timestamptz is only STABLE.
CREATE OR REPLACE FUNCTION stowage_marker_micros (marker timestamptz)
    RETURNS bigint
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        (extract(epoch FROM marker - timestamptz 'epoch') * 1000000)::bigint
$$;
