-- As whoever inserts, which SECURITY INVOKER is: whether that role may UPDATE the
-- column decides. The owner may, so a restored dump passes, and so may the workers.
-- The search path is fixed, or the inserting session's could lead to another
-- has_column_privilege.
CREATE OR REPLACE FUNCTION stowage_refuse_forged_counters ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    forged text := CASE WHEN NEW.size_bytes <> 0
        AND NOT has_column_privilege(TG_RELID, 'size_bytes', 'UPDATE') THEN
        'size_bytes = ' || NEW.size_bytes
    WHEN NEW.artifacts_count <> 0
        AND NOT has_column_privilege(TG_RELID, 'artifacts_count', 'UPDATE') THEN
        'artifacts_count = ' || NEW.artifacts_count
    WHEN NEW.last_reconciled_at <> 'epoch'
        AND NOT has_column_privilege(TG_RELID, 'last_reconciled_at', 'UPDATE') THEN
        'last_reconciled_at = ' || NEW.last_reconciled_at
    END;
BEGIN
    IF forged IS NULL THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'repository % cannot be inserted with %: role "%" may not update that column, for counters change only through the accounting protocol; leave it out', NEW.id, forged, CURRENT_USER
        USING ERRCODE = 'insufficient_privilege';
END;
$$;

-- The client names every column of a new row, so a privilege on columns cannot
-- tell its zeros from forged values. AFTER, because another BEFORE trigger could
-- change the row behind this one. An ordinary insert calls no function.
-- stowage:allow compat/trigger-refuses no version of the client inserts a repository with counters other than zero
CREATE TRIGGER trg_repositories_guard_counters
    AFTER INSERT ON repositories
    FOR EACH ROW
    WHEN (NEW.size_bytes <> 0 OR NEW.artifacts_count <> 0 OR NEW.last_reconciled_at <> 'epoch')
    EXECUTE FUNCTION stowage_refuse_forged_counters ();

-- How far each long backfill is. A batch moves its row in the transaction of what
-- it changed, so a killed worker's successor goes on where it stood. last_key is in
-- the backfill's own words: the last row that it has seen, empty before the first.
CREATE TABLE backfills (
    name text NOT NULL,
    state smallint NOT NULL,
    last_key text NOT NULL DEFAULT '',
    rows_seen bigint NOT NULL DEFAULT 0,
    rows_changed bigint NOT NULL DEFAULT 0,
    rows_expected bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz NULL,
    CONSTRAINT pk_backfills PRIMARY KEY (name),
    CONSTRAINT ck_backfills_state CHECK (state >= 1 AND state <= 4)
);
