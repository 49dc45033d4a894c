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
