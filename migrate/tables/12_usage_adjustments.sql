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
