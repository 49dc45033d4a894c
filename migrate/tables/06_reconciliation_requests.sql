-- No foreign key: a request must never hinder the deletion of its namespace.
CREATE TABLE reconciliation_requests (
    namespace_id uuid NOT NULL,
    marker timestamptz NOT NULL,
    CONSTRAINT pk_reconciliation_requests PRIMARY KEY (namespace_id)
);
