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
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_storage_ledger PRIMARY KEY (batch_id, scope_id),
    CONSTRAINT ck_storage_ledger_scope_kind CHECK (scope_kind >= 1 AND scope_kind <= 2),
    CONSTRAINT ck_storage_ledger_outcome CHECK (outcome >= 1 AND outcome <= 4)
)
PARTITION BY RANGE (batch_id);

-- What a reconciliation sums: the deltas of one scope since a marker.
CREATE INDEX index_storage_ledger_on_scope_id_and_marker ON storage_ledger (scope_id, marker);

-- What the history of usage rolls up: the changes of a namespace in an hour.
CREATE INDEX index_storage_ledger_on_hour_and_scope_id ON storage_ledger (date_trunc('hour', applied_at AT TIME ZONE 'UTC'), scope_id)
WHERE
    scope_kind = 1 AND outcome IN (1, 4);
