DROP TABLE storage_ledger;

ALTER TABLE blob_storage_attachments
    DROP CONSTRAINT fk_blob_storage_attachments_blob;
