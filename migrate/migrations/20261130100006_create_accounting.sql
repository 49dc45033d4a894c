-- What was applied or dropped, and why. It has no foreign key: it outlives its
-- scopes. Partitioned from the start, because retention drops whole partitions;
-- a batch id is a UUIDv7, so a range of ids is a range of time. The partitions
-- are made as time goes by, by the job that drops them too. There is no default
-- partition: a row in it would block the partition that should hold it.
CREATE TABLE storage_ledger (
    batch_id uuid NOT NULL,
    scope_id uuid NOT NULL,
    scope_kind smallint NOT NULL,
    namespace_id uuid NOT NULL,
    marker timestamptz NOT NULL,
    bytes bigint NOT NULL,
    components bigint NOT NULL,
    emissions bigint NOT NULL,
    outcome smallint NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_storage_ledger PRIMARY KEY (batch_id, scope_id),
    CONSTRAINT ck_storage_ledger_scope_kind CHECK (scope_kind >= 1 AND scope_kind <= 2),
    CONSTRAINT ck_storage_ledger_outcome CHECK (outcome >= 1 AND outcome <= 4)
)
PARTITION BY RANGE (batch_id);

-- What a reconciliation sums: the deltas of one scope since a marker.
CREATE INDEX index_storage_ledger_on_scope_id_and_marker ON storage_ledger (scope_id, marker);

-- Which Redis served a bucket when it was last looked at.
CREATE TABLE counter_buckets (
    bucket smallint NOT NULL,
    identity uuid NOT NULL,
    run_id text NOT NULL,
    CONSTRAINT pk_counter_buckets PRIMARY KEY (bucket),
    CONSTRAINT ck_counter_buckets_bucket CHECK (bucket >= 0 AND bucket <= 255)
);

-- No foreign key: a request must never hinder the deletion of its namespace.
CREATE TABLE reconciliation_requests (
    namespace_id uuid NOT NULL,
    marker timestamptz NOT NULL,
    CONSTRAINT pk_reconciliation_requests PRIMARY KEY (namespace_id)
);

CREATE OR REPLACE FUNCTION stowage_bucket (namespace_id uuid)
    RETURNS int
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        get_byte(sha256 (uuid_send(namespace_id)), 0)
$$;

-- By way of an interval, because extract from a timestamptz is only STABLE.
CREATE OR REPLACE FUNCTION stowage_marker_micros (marker timestamptz)
    RETURNS bigint
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        (extract(epoch FROM marker - timestamptz 'epoch') * 1000000)::bigint
$$;

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

CREATE OR REPLACE FUNCTION stowage_namespace_lock_key (namespace_id uuid)
    RETURNS bigint
    LANGUAGE sql
    IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT
        uuid_hash_extended(namespace_id, 0)
$$;

-- Called once by a counted transaction, after all its writes and right before
-- its COMMIT, with every namespace that it changed.
--
-- The lock comes first and the read after it, as statements of their own: in a
-- VOLATILE function under READ COMMITTED each statement takes a fresh snapshot,
-- so a marker that a reconciliation committed while we waited for the lock is
-- seen. One SELECT for both, or a STABLE function, would read the old marker.
-- REPEATABLE READ and SERIALIZABLE keep their first snapshot, hence the refusal.
--
-- The locks are held until COMMIT. Keys are locked in their order, so that two
-- transactions never wait for each other.
--
-- What Redis is told must survive a crash of Postgres, hence synchronous_commit.
--
-- marker is in microseconds since 1970, NULL where the namespace has no
-- statistics row: its caller then asks for a reconciliation.
CREATE OR REPLACE FUNCTION stowage_lock_markers (namespace_ids uuid[])
    RETURNS TABLE (
        namespace_id uuid,
        marker bigint)
    LANGUAGE plpgsql
    VOLATILE
    AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
            PERFORM
                set_config('synchronous_commit', 'on', TRUE);
        END IF;
        PERFORM
            pg_advisory_xact_lock_shared(keys.key)
        FROM ( SELECT DISTINCT
                public.stowage_namespace_lock_key (id) AS key
            FROM
                unnest(namespace_ids) AS id
            ORDER BY
                1) AS keys;
        RETURN QUERY SELECT DISTINCT
            ids.id,
            (
                SELECT
                    public.stowage_marker_micros (s.reconciliation_marker)
                FROM
                    public.namespace_statistics AS s
                WHERE
                    s.namespace_id = ids.id)
        FROM
            unnest(namespace_ids) AS ids (id);
        RETURN;
    END IF;
    RAISE EXCEPTION 'stowage_lock_markers in a transaction of isolation level %: its snapshot would hide the newest marker, so begin the transaction with ISOLATION LEVEL READ COMMITTED', current_setting('transaction_isolation')
        USING ERRCODE = 'invalid_transaction_state';
END;
$$;
