CREATE OR REPLACE FUNCTION stowage_keep_blob_content ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM public.blob_storage_deletions
    WHERE namespace_id = NEW.namespace_id
        AND sha256 = NEW.sha256;
    RETURN NULL;
END;
$$;

-- For every writer, raw SQL too: a blob that is stored again would lose its content.
CREATE TRIGGER trg_blob_storage_blobs_keep_content
    AFTER INSERT ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_keep_blob_content ();
