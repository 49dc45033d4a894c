CREATE TABLE notes (
    id uuid PRIMARY KEY,
    a int UNIQUE CHECK (a > 0),
    namespace_id uuid REFERENCES namespaces (id)
);

CREATE INDEX ON notes (a);

CREATE UNIQUE INDEX ON notes (namespace_id);

CREATE TYPE mood AS ENUM (
    'good',
    'bad'
);

CREATE FUNCTION note_it ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN NULL;
END;
$$;

CREATE TRIGGER note_it
    AFTER INSERT ON notes
    FOR EACH ROW
    EXECUTE FUNCTION note_it ();
