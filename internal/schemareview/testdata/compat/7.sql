-- atlas:txmode none

DROP INDEX CONCURRENTLY uq_container_manifests_repository_id_name_digest;
