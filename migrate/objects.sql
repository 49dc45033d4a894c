-- What stands in one schema, as statements that would make it again, in the
-- order in which they can run. The record of migrations is not part of it, nor
-- are the children of partitioned tables: those of a HASH are told in a comment,
-- those of a RANGE come and go.
SELECT
    kind,
    name,
    definition
FROM (
    SELECT
        1 AS rank,
        'type' AS kind,
        t.typname::text AS name,
        format('CREATE TYPE %s AS ENUM (%s);', t.oid::regtype, (
                SELECT
                    string_agg(quote_literal(enumlabel), ', ' ORDER BY enumsortorder)
                FROM pg_enum
                WHERE
                    enumtypid = t.oid)) AS definition
    FROM
        pg_type AS t
    WHERE
        t.typnamespace = $1::regnamespace
        AND t.typtype = 'e'
    UNION ALL
    SELECT
        2,
        'sequence',
        c.relname,
        format('CREATE SEQUENCE %s AS %s INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s%s;', c.oid::regclass, format_type(s.seqtypid, NULL), s.seqincrement, s.seqmin, s.seqmax, s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN
                ' CYCLE'
            END)
    FROM
        pg_class AS c
        JOIN pg_sequence AS s ON s.seqrelid = c.oid
    WHERE
        c.relnamespace = $1::regnamespace
    UNION ALL
    SELECT
        3,
        'function',
        p.oid::regprocedure::text,
        rtrim(pg_get_functiondef(p.oid), E'\n') || ';'
    FROM
        pg_proc AS p
    WHERE
        p.pronamespace = $1::regnamespace
        AND p.prokind IN ('f', 'p')
    UNION ALL
    SELECT
        4,
        'table',
        c.relname,
        format(E'CREATE %sTABLE %s (\n    %s\n)%s%s;%s', CASE WHEN c.relpersistence = 'u' THEN
                'UNLOGGED '
            END, c.oid::regclass, concat_ws(E',\n    ', columns.list, constraints.list), E'\nPARTITION BY ' || pg_get_partkeydef (c.oid), E'\nWITH (' || array_to_string(c.reloptions, ', ') || ')', columns.storage)
    FROM
        pg_class AS c
    CROSS JOIN LATERAL (
        SELECT
            string_agg(format('%I %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN
                        ' NOT NULL'
                    END, ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid)), E',\n    ' ORDER BY a.attnum) AS list,
            string_agg(format(E'\nALTER TABLE %s ALTER COLUMN %I SET STORAGE %s;', c.oid::regclass, a.attname, CASE a.attstorage
                    WHEN 'p' THEN
                        'PLAIN'
                    WHEN 'e' THEN
                        'EXTERNAL'
                    WHEN 'm' THEN
                        'MAIN'
                    WHEN 'x' THEN
                        'EXTENDED'
                    END), '' ORDER BY a.attnum) FILTER (WHERE a.attstorage <> t.typstorage) AS storage
        FROM
            pg_attribute AS a
            JOIN pg_type AS t ON t.oid = a.atttypid
            LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid
                AND d.adnum = a.attnum
        WHERE
            a.attrelid = c.oid
            AND a.attnum > 0
            AND NOT a.attisdropped) AS columns
    CROSS JOIN LATERAL (
        SELECT
            string_agg(format('CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)), E',\n    ' ORDER BY strpos('puxc', contype::text), conname) AS list
        FROM
            pg_constraint
        WHERE
            conrelid = c.oid
            AND contype IN ('p', 'u', 'x', 'c')) AS constraints
    WHERE
        c.relnamespace = $1::regnamespace
        AND c.relkind IN ('r', 'p')
        AND NOT c.relispartition
        AND c.relname <> 'atlas_schema_revisions'
    UNION ALL
    SELECT
        5,
        'partitions',
        c.relname,
        format('-- %s partitions of %s, %s to %s', count(*), c.oid::regclass, min(child.oid::regclass::text), max(child.oid::regclass::text))
    FROM
        pg_partitioned_table AS p
        JOIN pg_class AS c ON c.oid = p.partrelid
        JOIN pg_inherits AS i ON i.inhparent = c.oid
        JOIN pg_class AS child ON child.oid = i.inhrelid
    WHERE
        c.relnamespace = $1::regnamespace
        AND p.partstrat = 'h'
    GROUP BY
        c.oid,
        c.relname
    UNION ALL
    SELECT
        6,
        'foreign key',
        conname,
        format('ALTER TABLE %s ADD CONSTRAINT %I %s;', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM
        pg_constraint
    WHERE
        connamespace = $1::regnamespace
        AND contype = 'f'
        AND conparentid = 0
    UNION ALL
    SELECT
        7,
        'index',
        c.relname,
        pg_get_indexdef(c.oid) || ';' || CASE WHEN i.indisvalid THEN
            ''
        ELSE
            ' -- INVALID'
        END
    FROM
        pg_class AS c
        JOIN pg_index AS i ON i.indexrelid = c.oid
    WHERE
        c.relnamespace = $1::regnamespace
        AND NOT c.relispartition
        AND NOT EXISTS (
            SELECT
            FROM
                pg_constraint
            WHERE
                conindid = c.oid
                AND contype IN ('p', 'u', 'x'))
        UNION ALL
        SELECT
            8,
            'trigger',
            t.tgname,
            pg_get_triggerdef(t.oid) || ';' || CASE t.tgenabled
            WHEN 'O' THEN
                ''
            ELSE
                ' -- tgenabled ' || t.tgenabled::text
            END
        FROM
            pg_trigger AS t
            JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE
            c.relnamespace = $1::regnamespace
            AND NOT t.tgisinternal
            AND t.tgparentid = 0) AS objects
ORDER BY
    rank,
    name COLLATE "C"
