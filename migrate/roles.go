package migrate

import _ "embed"

// Roles is SQL that makes the roles stowage_migrator, stowage_writer,
// stowage_worker and stowage_reader and grants each what its programs need. Its
// header says when to run it and how programs log in.
//
//go:embed roles.sql
var Roles string
