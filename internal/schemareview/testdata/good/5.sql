UPDATE
    repositories
SET
    description = name
WHERE
    id = '01890000-0000-7000-8000-000000000000';
