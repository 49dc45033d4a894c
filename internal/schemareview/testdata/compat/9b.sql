ALTER TYPE river.river_job_state RENAME VALUE 'pending' TO 'waiting';
