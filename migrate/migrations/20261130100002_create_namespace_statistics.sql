-- Not partitioned, because of the shape of its key: the primary key is the
-- namespace's id alone, so the table cannot represent a second row for a
-- namespace, and there is nothing a partition key could divide.
--
-- Its foreign key cascades while no other one to namespaces names an action: a
-- row that a trigger creates and nothing removes would make every namespace
-- undeletable.
--
-- The counters have no CHECK: deltas of one scope may arrive out of order, so
-- a counter may stand below zero for a moment.
--
-- 'epoch' is "never": a real pass can never stamp it, because its marker is at
-- least one microsecond later.
--
-- Every drain rewrites its rows. The fillfactor leaves room on the page for the
-- new version, so an update that moves only counters touches no index (HOT).
CREATE TABLE namespace_statistics (
    namespace_id uuid NOT NULL,
    deduplicated_size_bytes bigint NOT NULL DEFAULT 0,
    components_count bigint NOT NULL DEFAULT 0,
    last_reconciled_at timestamptz NOT NULL DEFAULT 'epoch',
    reconciliation_marker timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT pk_namespace_statistics PRIMARY KEY (namespace_id),
    CONSTRAINT fk_namespace_statistics_namespace FOREIGN KEY (namespace_id) REFERENCES namespaces (id) ON DELETE CASCADE
)
WITH (
    fillfactor = 70
);

-- The second column is the cursor over a tie: any number of rows share 'epoch',
-- and a page must be able to begin in the middle of them.
CREATE INDEX index_namespace_statistics_on_last_reconciled_at_and_ns_id ON namespace_statistics (last_reconciled_at, namespace_id);

-- ON CONFLICT lets the client's hook make the row as well: together they make one.
CREATE OR REPLACE FUNCTION stowage_create_namespace_statistics ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO public.namespace_statistics (namespace_id)
        VALUES (NEW.id)
    ON CONFLICT (namespace_id)
        DO NOTHING;
    RETURN NULL;
END;
$$;

-- The order is load-bearing: first the trigger, then the seed. From the trigger
-- on, every new namespace has its row, so the seed has only the earlier ones to
-- find; the other way round, a namespace made between the two would have none.
-- One transaction is preferred because no intermediate state is visible, not
-- because a split would lose rows: ON CONFLICT DO NOTHING covers it.
CREATE TRIGGER trg_namespaces_create_statistics
    AFTER INSERT ON namespaces
    FOR EACH ROW
    EXECUTE FUNCTION stowage_create_namespace_statistics ();

INSERT INTO namespace_statistics (namespace_id)
SELECT
    id
FROM
    namespaces
ON CONFLICT (namespace_id)
    DO NOTHING;
