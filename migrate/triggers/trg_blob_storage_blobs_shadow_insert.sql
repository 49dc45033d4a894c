-- A plain INSERT: a row that is there already means that the shadow has drifted,
-- which must be seen and not be covered up.
CREATE OR REPLACE FUNCTION stowage_shadow_blob_insert ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO public.blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
        VALUES (NEW.namespace_id, NEW.sha256, NEW.size_bytes);
    RETURN NULL;
END;
$$;

CREATE TRIGGER trg_blob_storage_blobs_shadow_insert
    AFTER INSERT ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_shadow_blob_insert ();
