-- What the rules compare, as one JSON object: all of it in one statement, so
-- that it is of one instant. Partitions are left out: they follow their parent.
WITH spaces AS (
    SELECT
        oid,
        nspname
    FROM
        pg_namespace
    WHERE
        nspname !~ '^pg_'
        AND nspname <> 'information_schema'
),
tables AS (
    SELECT
        c.oid,
        spaces.nspname,
        c.relkind,
        c.relrowsecurity
    FROM
        pg_class AS c
        JOIN spaces ON spaces.oid = c.relnamespace
    WHERE
        c.relkind IN ('r', 'p')
        AND NOT c.relispartition
)
SELECT
    json_build_object('tables', (
            SELECT
                json_agg(json_build_object('id', oid::bigint, 'name', oid::regclass::text, 'schema', nspname, 'rls', relrowsecurity)
                ORDER BY oid)
            FROM tables), 'columns', (
            SELECT
                json_agg(json_build_object('table', a.attrelid::bigint, 'number', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'notnull', a.attnotnull, 'default', coalesce(pg_get_expr(d.adbin, d.adrelid), ''), 'generated', a.attgenerated, 'identity', a.attidentity)
                ORDER BY a.attrelid, a.attnum)
            FROM pg_attribute AS a
            JOIN tables ON tables.oid = a.attrelid
            LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid
                AND d.adnum = a.attnum
            WHERE
                a.attnum > 0
                AND NOT a.attisdropped), 'constraints', (
            SELECT
                json_agg(json_build_object('id', o.oid::bigint, 'table', o.conrelid::bigint, 'schema', tables.nspname, 'name', o.conname, 'kind', o.contype, 'validated', o.convalidated, 'definition', pg_get_constraintdef(o.oid), 'columns', (
                            SELECT
                                json_agg(a.attname ORDER BY a.attnum)
                            FROM pg_attribute AS a
                            WHERE
                                a.attrelid = o.conrelid
                                AND a.attnum = ANY (o.conkey)))
                ORDER BY o.oid)
            FROM pg_constraint AS o
            JOIN tables ON tables.oid = o.conrelid
            WHERE
                o.contype IN ('p', 'u', 'x', 'c', 'f')
                AND o.conparentid = 0), 'indexes', (
            SELECT
                json_agg(json_build_object('id', i.indexrelid::bigint, 'table', i.indrelid::bigint, 'schema', tables.nspname, 'name', c.relname, 'unique', i.indisunique, 'owned', EXISTS (
                            SELECT
                            FROM pg_constraint
                            WHERE
                                conindid = c.oid
                                AND contype IN ('p', 'u', 'x')), 'predicate', coalesce(pg_get_expr(i.indpred, i.indrelid), ''), 'columns', (
                            SELECT
                                json_agg(pg_get_indexdef(i.indexrelid, k, TRUE)
                                ORDER BY k)
                            FROM generate_series(1, i.indnkeyatts) AS k))
                ORDER BY i.indexrelid)
            FROM pg_index AS i
            JOIN tables ON tables.oid = i.indrelid
            JOIN pg_class AS c ON c.oid = i.indexrelid), 'functions', (
            SELECT
                json_agg(json_build_object('id', p.oid::bigint, 'schema', spaces.nspname, 'name', p.proname, 'signature', p.oid::regprocedure::text, 'arguments', pg_get_function_arguments(p.oid), 'result', coalesce(pg_get_function_result(p.oid), 'procedure'), 'source', p.prosrc, 'definition', pg_get_functiondef(p.oid))
                ORDER BY p.oid)
            FROM pg_proc AS p
            JOIN spaces ON spaces.oid = p.pronamespace
            WHERE
                p.prokind IN ('f', 'p')), 'triggers', (
            SELECT
                json_agg(json_build_object('id', t.oid::bigint, 'table', t.tgrelid::bigint, 'schema', tables.nspname, 'name', t.tgname, 'definition', pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text, 'function', t.tgfoid::bigint, 'before', t.tgtype & 2 <> 0)
                ORDER BY t.oid)
            FROM pg_trigger AS t
            JOIN tables ON tables.oid = t.tgrelid
            WHERE
                NOT t.tgisinternal
                AND t.tgparentid = 0), 'enums', (
            SELECT
                json_agg(json_build_object('id', t.oid::bigint, 'schema', spaces.nspname, 'name', t.oid::regtype::text, 'labels', (
                            SELECT
                                json_agg(enumlabel ORDER BY enumsortorder)
                            FROM pg_enum
                            WHERE
                                enumtypid = t.oid))
                ORDER BY t.oid)
            FROM pg_type AS t
            JOIN spaces ON spaces.oid = t.typnamespace
            WHERE
                t.typtype = 'e'))
