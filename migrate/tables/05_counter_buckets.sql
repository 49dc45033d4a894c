-- Which Redis served a bucket when it was last looked at.
CREATE TABLE counter_buckets (
    bucket smallint NOT NULL,
    identity uuid NOT NULL,
    run_id text NOT NULL,
    CONSTRAINT pk_counter_buckets PRIMARY KEY (bucket),
    CONSTRAINT ck_counter_buckets_bucket CHECK (bucket >= 0 AND bucket <= 255)
);
