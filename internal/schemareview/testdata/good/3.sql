-- atlas:txmode none

CREATE INDEX CONCURRENTLY index_repositories_on_visibility ON repositories (visibility);
