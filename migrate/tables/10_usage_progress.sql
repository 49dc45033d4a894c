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
