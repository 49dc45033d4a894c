-- atlas:txmode none

CREATE INDEX CONCURRENTLY index_repositories_on_kind ON repositories (kind);

CREATE INDEX CONCURRENTLY index_repositories_on_format ON repositories (format);
