-- The way back from guard_counters_and_create_backfills.
DROP TABLE backfills;

DROP TRIGGER trg_repositories_guard_counters ON repositories;

DROP FUNCTION stowage_refuse_forged_counters ();
