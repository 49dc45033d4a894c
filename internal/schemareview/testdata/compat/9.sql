DROP TRIGGER trg_namespaces_create_statistics ON namespaces;

CREATE OR REPLACE TRIGGER trg_namespaces_slug_immutable
    BEFORE UPDATE ON namespaces
    FOR EACH ROW
    EXECUTE FUNCTION stowage_refuse_slug_change ();

CREATE TRIGGER trg_repositories_immutable
    AFTER UPDATE ON repositories
    FOR EACH ROW
    EXECUTE FUNCTION stowage_refuse_slug_change ();
