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
