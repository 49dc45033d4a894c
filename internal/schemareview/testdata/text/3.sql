CREATE TABLE moments (
    id uuid NOT NULL,
    at timestamp NULL,
    CONSTRAINT pk_moments PRIMARY KEY (id)
);

INSERT INTO moments (id)
    VALUES (gen_random_uuid ());
