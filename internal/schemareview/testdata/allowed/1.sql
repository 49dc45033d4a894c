-- stowage:allow object-name The names are those of the tool that reads them.

CREATE INDEX wide ON counter_buckets (run_id);

-- stowage:allow concurrent-index,declared-source,squawk/nothing At most 256 rows.
CREATE INDEX narrow ON counter_buckets (bucket, run_id);

-- stowage:allow atlas/DS102,compat/table-dropped
DROP TABLE reconciliation_requests;

-- stowage:allow compat/table-dropped No version reads it since 1.4.
DROP TABLE storage_ledger;

CREATE OR REPLACE FUNCTION stowage_note ()
    RETURNS void
    LANGUAGE sql
    AS $$
    -- stowage:allow declared-source This stands inside of a statement.
    SELECT
        NULL::void
$$;
