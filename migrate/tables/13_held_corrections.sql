-- Corrections that would lower a counter so much that they wait: for a pass that
-- still finds them after a while, or for a person. seen is the marker of the first
-- pass that found it; expected is what the row held at that moment with all that
-- was on its way to it, counted what the pass would have written. The rows of a
-- namespace go with its statistics.
CREATE TABLE held_corrections (
    scope_id uuid NOT NULL,
    scope_kind smallint NOT NULL,
    namespace_id uuid NOT NULL,
    seen timestamptz NOT NULL,
    expected_bytes bigint NOT NULL,
    expected_components bigint NOT NULL,
    counted_bytes bigint NOT NULL,
    counted_components bigint NOT NULL,
    next_pass timestamptz NOT NULL,
    approved_at timestamptz NULL,
    approved_by text NULL,
    CONSTRAINT pk_held_corrections PRIMARY KEY (scope_id),
    CONSTRAINT ck_held_corrections_scope_kind CHECK (scope_kind >= 1 AND scope_kind <= 2),
    CONSTRAINT fk_held_corrections_namespace_statistics FOREIGN KEY (namespace_id) REFERENCES namespace_statistics (namespace_id) ON DELETE CASCADE
);

CREATE INDEX index_held_corrections_on_namespace_id ON held_corrections (namespace_id);
