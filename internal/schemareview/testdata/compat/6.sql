-- atlas:txmode none

CREATE UNIQUE INDEX CONCURRENTLY uq_container_manifests_digest ON container_manifests (digest);
