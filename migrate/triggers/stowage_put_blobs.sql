-- Stores blobs that are not there, and leaves every one of them locked against
-- the collector, so that the caller can attach them. One digest after the other,
-- and the caller gives them in ascending order: whoever waits for a blob holds
-- none behind it, so neither two calls nor a call and the collector, which locks
-- in the same order, can deadlock. All of them in one INSERT would hold the new
-- ones while it waits for the others.
--
-- A blob that was there and is collected before it is locked is stored again.
-- size is the one stored, created says whether this call stored it.
CREATE OR REPLACE FUNCTION stowage_put_blobs (namespace uuid, digests bytea[], sizes bigint[])
    RETURNS TABLE (
        digest bytea,
        size bigint,
        created boolean)
    LANGUAGE plpgsql
    VOLATILE
    AS $$
DECLARE
    i int := 0;
BEGIN
    FOREACH digest IN ARRAY digests LOOP
        i := i + 1;
        LOOP
            size := sizes[i];
            INSERT INTO public.blob_storage_blobs (namespace_id, sha256, size_bytes)
                VALUES (namespace, digest, size)
            ON CONFLICT
                DO NOTHING;
            created := FOUND;
            EXIT
            WHEN created;
            SELECT
                b.size_bytes INTO size
            FROM
                public.blob_storage_blobs AS b
            WHERE
                b.namespace_id = namespace
                AND b.sha256 = digest
            FOR KEY SHARE;
            EXIT
            WHEN FOUND;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END;
$$;
