-- What is needed to make rows in the tables that stand: columns in the order of
-- their tables' names, each with the column that a foreign key takes it from.
SELECT
    c.oid,
    c.oid::regclass::text AS table_name,
    a.attname,
    format_type(a.atttypid, a.atttypmod) AS type,
    coalesce(base.typcategory, t.typcategory)::text AS category,
    a.attnotnull,
    d.oid IS NOT NULL OR a.attidentity <> '' AS has_default,
    a.attgenerated <> '' OR a.attidentity <> '' AS made_by_server,
    coalesce(key.confrelid, 0) AS parent,
    coalesce(key.confrelid::regclass::text, '') AS parent_name,
    coalesce((
        SELECT
            attname
        FROM pg_attribute
        WHERE
            attrelid = key.confrelid
            AND attnum = key.confkey[array_position(key.conkey, a.attnum)]), '') AS parent_column,
    coalesce((
        SELECT
            string_agg(quote_ident(attname), ', ' ORDER BY attnum)
        FROM pg_attribute
    WHERE
        attrelid = key.confrelid
        AND attnum = ANY (key.confkey)), '') AS parent_order
FROM
    pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_attribute AS a ON a.attrelid = c.oid
    JOIN pg_type AS t ON t.oid = a.atttypid
    LEFT JOIN pg_type AS base ON base.oid = t.typbasetype
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid
        AND d.adnum = a.attnum
    LEFT JOIN LATERAL (
        SELECT
            confrelid,
            conkey,
            confkey
        FROM
            pg_constraint
        WHERE
            conrelid = c.oid
            AND contype = 'f'
            AND conparentid = 0
            AND a.attnum = ANY (conkey)
        ORDER BY
            cardinality(conkey) DESC,
            conname
        LIMIT 1) AS key ON TRUE
WHERE
    c.relkind IN ('r', 'p')
    AND NOT c.relispartition
    AND n.nspname !~ '^pg_'
    AND n.nspname <> 'information_schema'
    AND a.attnum > 0
    AND NOT a.attisdropped
ORDER BY
    c.oid::regclass::text COLLATE "C",
    a.attnum
