UPDATE
    repositories
SET
    description = name
WHERE
    description IS NULL;
