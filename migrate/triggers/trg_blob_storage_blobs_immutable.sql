CREATE OR REPLACE FUNCTION stowage_refuse_blob_change ()
    RETURNS TRIGGER
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'blob % of namespace % cannot be updated: a digest determines its content, so delete the row and insert another', encode(OLD.sha256, 'hex'), OLD.namespace_id
        USING ERRCODE = 'restrict_violation';
END;
$$;

-- The shadow and the sizes of versions rely on it: an update would leave both behind.
CREATE TRIGGER trg_blob_storage_blobs_immutable
    BEFORE UPDATE ON blob_storage_blobs
    FOR EACH ROW
    EXECUTE FUNCTION stowage_refuse_blob_change ();
