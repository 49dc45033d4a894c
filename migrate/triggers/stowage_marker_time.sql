-- In two parts, because a factor of an interval is a float8: the microseconds
-- as a whole would be exact up to 2^53 only, which is the year 2255. By way of a
-- timestamp in UTC, because timestamptz plus interval is only STABLE.
CREATE OR REPLACE FUNCTION stowage_marker_time (micros bigint)
    RETURNS timestamptz
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        (timestamp 'epoch' + micros / 1000000 * interval '1 second' + micros % 1000000 * interval '1 microsecond') AT TIME ZONE 'UTC'
$$;
