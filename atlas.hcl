// For the open Atlas CLI (ariga.io/atlas/cmd/atlas v0.13.1), which may be used
// in place of "stowage migrate apply" and "stowage migrate status": both keep
// the same record and wait for each other. Tests run all of this with that
// release. The official binary cannot be run there, so nothing stands here but
// what its documentation and the library that it is made of (v1.2.0) know too.
// Its "migrate lint" wants a login.
//
// The connections are bound to search_path=public. Bound, the CLI keeps its
// record in that schema, where package migrate expects it, and does not see the
// schemas of River and of the partitions. The bound form must not be changed:
// unbound, the CLI would keep a second record and apply everything again.
//
// STOWAGE_DATABASE__URL is what "stowage" reads, with two differences: the CLI
// wants TLS unless the URL says sslmode=disable, and knows no pool_ parameters.
//
// The next migration is written by "stowage migrate diff", never by the CLI: the
// open CLI reads no Ent schema, compares no functions and triggers, and takes
// the keys that PostgreSQL derives for partitions for constraints to drop.

// The commit that a change is compared with: --var base=...
variable "base" {
  type    = string
  default = "origin/main"
}

// What one file says of itself. It sees tables, columns, indexes and keys.
// Functions and triggers, locks and rewrites as they are measured, old builds
// on the new schema, and the form of the SQL it does not: those are for
// "stowage migrate review" and the tests.
lint {
  destructive {
    error = true
  }
  data_depend {
    error = true
  }
  // Renames, which an older build that still runs cannot bear.
  incompatible {
    error = true
  }
  concurrent_index {
    error = true
  }
  // Names of constraints are for a test: PostgreSQL names those of partitions.
  naming {
    error = true
    index {
      match   = "^(index|uq|river)_"
      message = "index_ or uq_; River's are as River names them"
    }
  }
}

env "local" {
  src = "file://migrate/schema.sql"
  url = urlqueryset(getenv("STOWAGE_DATABASE__URL"), "search_path", "public")
  // Not bound: the CLI empties this database after use, all schemas of it.
  dev = getenv("ATLAS_DEV_URL")
  migration {
    dir = "file://migrate/migrations"
  }
  lint {
    latest = 1
  }
}

// For "migrate lint" and "migrate validate". The database must be a new one: the
// CLI does not drop functions.
env "ci" {
  dev = getenv("ATLAS_DEV_URL")
  migration {
    dir = "file://migrate/migrations"
  }
  lint {
    git {
      base = var.base
    }
  }
}

env "deploy" {
  url = urlqueryset(getenv("STOWAGE_DATABASE__URL"), "search_path", "public")
  migration {
    dir = "file://migrate/migrations"
    // Longer than others need, and shorter than "stowage migrate apply" goes on
    // trying: a CLI that waits is in the way of its CREATE INDEX CONCURRENTLY.
    lock_timeout = "30s"
  }
}
