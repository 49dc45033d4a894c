-- As its owner: whoever may delete a namespace need not be able to write history,
-- and a registry that runs while this migration is applied has no such right yet.
-- So the function serves its own table only, and not a trigger on one of the
-- caller's.
CREATE OR REPLACE FUNCTION stowage_close_usage ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    INSERT INTO public.usage_closings (namespace_id, bytes, components)
    SELECT
        OLD.namespace_id,
        OLD.deduplicated_size_bytes,
        OLD.components_count
    WHERE
        TG_RELID = 'public.namespace_statistics'::regclass;
    RETURN NULL;
END;
$$;

-- Nothing else says when a namespace ended, and what it had then: it takes its
-- row along, and its flushes are dropped from then on.
CREATE TRIGGER trg_namespace_statistics_close_usage
    AFTER DELETE ON namespace_statistics
    FOR EACH ROW
    WHEN (OLD.deduplicated_size_bytes <> 0 OR OLD.components_count <> 0)
    EXECUTE FUNCTION stowage_close_usage ();
