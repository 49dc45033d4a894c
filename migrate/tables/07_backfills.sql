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
