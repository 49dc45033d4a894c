CREATE TABLE repository_notes (
    id uuid NOT NULL,
    repository_id uuid NOT NULL,
    note text NOT NULL,
    CONSTRAINT pk_repository_notes PRIMARY KEY (id),
    CONSTRAINT fk_repository_notes_repository FOREIGN KEY (repository_id) REFERENCES repositories (id),
    CONSTRAINT ck_repository_notes_note CHECK (note <> '')
);

CREATE UNIQUE INDEX uq_repository_notes_note ON repository_notes (note);

CREATE INDEX index_repository_notes_on_repository_id ON repository_notes (repository_id);

CREATE OR REPLACE FUNCTION stowage_note ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN NULL;
END;
$$;

CREATE TRIGGER trg_repository_notes_note
    AFTER INSERT ON repository_notes
    FOR EACH ROW
    EXECUTE FUNCTION stowage_note ();
