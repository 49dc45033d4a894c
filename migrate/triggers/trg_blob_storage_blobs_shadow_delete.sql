CREATE OR REPLACE FUNCTION stowage_shadow_blob_delete ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM public.blob_storage_blobs_by_namespace
    WHERE namespace_id = OLD.namespace_id
        AND sha256 = OLD.sha256;
    RETURN NULL;
END;
$$;

CREATE TRIGGER trg_blob_storage_blobs_shadow_delete
    AFTER DELETE ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_shadow_blob_delete ();
