UPDATE
    container_manifests
SET
    created_at = now();
