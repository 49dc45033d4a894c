-- Every table and partition, by the name of the table that it is a partition of,
-- with its file and what was read and written of it in this transaction. For what
-- cannot run in one, the functions without _xact_ take the place of these.
SELECT
    c.oid,
    coalesce(pg_partition_root(c.oid), c.oid)::oid AS root,
    coalesce(pg_partition_root(c.oid), c.oid)::regclass::text AS name,
    coalesce(pg_relation_filenode(c.oid), 0) AS file,
    pg_stat_get_xact_numscans (c.oid) AS scans,
    pg_stat_get_xact_tuples_inserted (c.oid) AS inserted,
    pg_stat_get_xact_tuples_updated (c.oid) AS updated,
    pg_stat_get_xact_tuples_deleted (c.oid) AS deleted
FROM
    pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE
    c.relkind IN ('r', 'p', 'm')
    AND n.nspname !~ '^pg_'
    AND n.nspname <> 'information_schema'
