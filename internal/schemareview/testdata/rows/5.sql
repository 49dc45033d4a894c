ALTER TABLE namespace_statistics
    ADD CONSTRAINT fk_namespace_statistics_namespace_again FOREIGN KEY (namespace_id) REFERENCES namespaces (id);
