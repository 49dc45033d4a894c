CREATE OR REPLACE FUNCTION stowage_refuse_slug_change ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'slug of namespace % cannot change from "%" to "%": it stands in URLs and in stored references; create another namespace instead', OLD.id, OLD.slug, NEW.slug
        USING ERRCODE = 'restrict_violation';
END;
$$;

-- The generated client cannot name the column in an update. The trigger holds
-- the rule for every other writer. It has no column list, because a list would
-- let a change pass that another BEFORE trigger makes.
CREATE TRIGGER trg_namespaces_slug_immutable
    BEFORE UPDATE ON namespaces
    FOR EACH ROW
    WHEN (OLD.slug IS DISTINCT FROM NEW.slug)
    EXECUTE FUNCTION stowage_refuse_slug_change ();
