ALTER TABLE moments ADD COLUMN note text NULL;
