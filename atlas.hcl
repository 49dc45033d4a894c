// For the open Atlas CLI (ariga.io/atlas/cmd/atlas v0.13.1), which may be used
// in place of "stowage migrate apply" and "stowage migrate status": both keep
// the same record and wait for each other.
//
// The connections are bound to search_path=public. Bound, the CLI keeps its
// record in that schema, where package migrate expects it, and does not see the
// schemas of River and of the partitions. The bound form must not be changed:
// unbound, the CLI would keep a second record and apply everything again.
//
// The next migration is written by "stowage migrate diff", never by the CLI: the
// open CLI reads no Ent schema, compares no functions and triggers, and takes
// the keys that PostgreSQL derives for partitions for constraints to drop.

env "local" {
  src = "file://migrate/schema.sql"
  url = urlqueryset(getenv("STOWAGE_DATABASE__URL"), "search_path", "public")
  // Not bound: the CLI empties this database after use, all schemas of it.
  dev = getenv("ATLAS_DEV_URL")
  migration {
    dir = "file://migrate/migrations"
  }
}

env "deploy" {
  url = urlqueryset(getenv("STOWAGE_DATABASE__URL"), "search_path", "public")
  migration {
    dir = "file://migrate/migrations"
  }
}
