-- What the counters of a deleted namespace were, until its last hour is rolled up.
CREATE TABLE usage_closings (
    namespace_id uuid NOT NULL,
    closed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    bytes bigint NOT NULL,
    components bigint NOT NULL,
    CONSTRAINT pk_usage_closings PRIMARY KEY (namespace_id, closed_at)
);
