CREATE INDEX index_repositories_on_kind ON repositories (kind);
