-- A constant default is kept in the catalog: no row is rewritten.
ALTER TABLE repositories
    ADD COLUMN last_reconciled_at timestamptz NOT NULL DEFAULT 'epoch';
