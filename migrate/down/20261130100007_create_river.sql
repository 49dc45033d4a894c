-- The way back from create_river. Without CASCADE: what somebody else put into
-- the schema, or built on it, stops it.
-- made by the migration itself: river.river_migration

DROP TABLE river.river_job, river.river_leader, river.river_migration, river.river_notification, river.river_queue;

DROP FUNCTION river.river_job_state_in_bitmask (bit, river.river_job_state);

DROP TYPE river.river_job_state;

DROP SCHEMA river;
