-- ON CONFLICT lets the client's hook make the row as well: together they make one.
CREATE OR REPLACE FUNCTION stowage_create_namespace_statistics ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO public.namespace_statistics (namespace_id)
        VALUES (NEW.id)
    ON CONFLICT (namespace_id)
        DO NOTHING;
    RETURN NULL;
END;
$$;

CREATE TRIGGER trg_namespaces_create_statistics
    AFTER INSERT ON namespaces
    FOR EACH ROW
    EXECUTE FUNCTION stowage_create_namespace_statistics ();
