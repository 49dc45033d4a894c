-- What the history of usage rolls up: the changes of a namespace in an hour. Drains
-- wait while it is made, and what they would have drained stays in Redis; registries
-- write no ledger, and reading it goes on.
-- stowage:allow concurrent-index the index of a partitioned table cannot be made concurrently, and only drains wait
CREATE INDEX index_storage_ledger_on_hour_and_scope_id ON storage_ledger (date_trunc('hour', applied_at AT TIME ZONE 'UTC'), scope_id)
WHERE
    scope_kind = 1 AND outcome IN (1, 4);

-- How far the history of usage is, in one row that the first roll-up makes. It has
-- the hours from since to hour, which are closed. Those from hour to sealed are
-- rolled up next, of the first the namespaces after after_namespace_id. fence is the
-- transactions that were writing entries when sealed was set: once they are over,
-- the sealed hours get no more.
CREATE TABLE usage_progress (
    id smallint NOT NULL,
    since timestamptz NOT NULL,
    hour timestamptz NOT NULL,
    after_namespace_id uuid NOT NULL,
    sealed timestamptz NOT NULL,
    fence text[] NOT NULL,
    CONSTRAINT pk_usage_progress PRIMARY KEY (id),
    CONSTRAINT ck_usage_progress_id CHECK (id = 1)
);

-- Hours in which a namespace's counters changed. No row is ever updated. No foreign
-- key: history outlives its namespace.
CREATE TABLE usage_hours (
    namespace_id uuid NOT NULL,
    hour timestamptz NOT NULL,
    bytes_start bigint NOT NULL,
    components_start bigint NOT NULL,
    bytes_end bigint NOT NULL,
    components_end bigint NOT NULL,
    peak_bytes bigint NOT NULL,
    byte_seconds numeric NOT NULL,
    CONSTRAINT pk_usage_hours PRIMARY KEY (namespace_id, hour)
);

-- What leaves history with an hour.
CREATE INDEX index_usage_hours_on_hour_and_namespace_id ON usage_hours (hour, namespace_id);

-- Changes that no traffic of their hour explains. The figures of that hour contain
-- them. batch_id is the ledger's, and zero for those that are not in it.
CREATE TABLE usage_adjustments (
    namespace_id uuid NOT NULL,
    applied_at timestamptz NOT NULL,
    kind smallint NOT NULL,
    batch_id uuid NOT NULL,
    bytes bigint NOT NULL,
    components bigint NOT NULL,
    CONSTRAINT pk_usage_adjustments PRIMARY KEY (namespace_id, applied_at, kind, batch_id),
    CONSTRAINT ck_usage_adjustments_kind CHECK (kind >= 1 AND kind <= 4)
);

-- What leaves history with an hour.
CREATE INDEX index_usage_adjustments_on_applied_at ON usage_adjustments (applied_at);

-- What the counters of a deleted namespace were, until its last hour is rolled up.
CREATE TABLE usage_closings (
    namespace_id uuid NOT NULL,
    closed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    bytes bigint NOT NULL,
    components bigint NOT NULL,
    CONSTRAINT pk_usage_closings PRIMARY KEY (namespace_id, closed_at)
);

-- As its owner: whoever may delete a namespace need not be able to write history,
-- and a registry that runs while this migration is applied has no such right yet.
-- So the function serves its own table only, and not a trigger on one of the
-- caller's.
CREATE OR REPLACE FUNCTION stowage_close_usage ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    INSERT INTO public.usage_closings (namespace_id, bytes, components)
    SELECT
        OLD.namespace_id,
        OLD.deduplicated_size_bytes,
        OLD.components_count
    WHERE
        TG_RELID = 'public.namespace_statistics'::regclass;
    RETURN NULL;
END;
$$;

-- Nothing else says when a namespace ended, and what it had then: it takes its
-- row along, and its flushes are dropped from then on.
CREATE TRIGGER trg_namespace_statistics_close_usage
    AFTER DELETE ON namespace_statistics
    FOR EACH ROW
    WHEN (OLD.deduplicated_size_bytes <> 0 OR OLD.components_count <> 0)
    EXECUTE FUNCTION stowage_close_usage ();

-- The default was the start of the transaction, which may be much earlier. This is
-- the last statement, for it locks out those who read the ledger too.
ALTER TABLE storage_ledger
    ALTER COLUMN applied_at SET DEFAULT clock_timestamp();
