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
