CREATE TABLE notes (
    id uuid NOT NULL,
    CONSTRAINT pk_notes PRIMARY KEY (id)
);

ALTER TABLE nowhere
    ADD COLUMN note text NULL;

ALTER TABLE notes
    ADD COLUMN note text NULL;
