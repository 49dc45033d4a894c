-- The way back from create_held_corrections.
DROP TABLE held_corrections;
