ALTER TABLE moments ADD COLUMN note text NULL;
-- stowage:allow format It stands above nothing.
