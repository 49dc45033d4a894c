ALTER TABLE repositories
    ALTER COLUMN soft_deleted_at SET NOT NULL;
