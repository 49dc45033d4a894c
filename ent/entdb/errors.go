package entdb

import (
	"errors"

	"github.com/stowage-dev/stowage/internal/enthook"
	"github.com/stowage-dev/stowage/internal/entpgx"
)

// Sentinel errors. Compare with errors.Is; their texts carry no identifiers,
// so log the ids as fields of your own.
var (
	// ErrNotFound says that there is no such row: a namespace without a
	// statistics row is not found either, it never reads as zero.
	ErrNotFound = errors.New("not found")
	// ErrNilID says that an id is the zero UUID. Nothing was asked of the
	// database.
	ErrNilID = errors.New("the id is the zero UUID")
	// ErrUncounted says that a mutation that changes counters ran outside a
	// counted transaction. Nothing was changed. Use WithTx, and in it the
	// client that its function is given.
	ErrUncounted = enthook.ErrUncounted
	// ErrVirtual says that a version was to be stored in a virtual repository.
	ErrVirtual = enthook.ErrVirtual
	// ErrRepository says that a version names a repository that is not there.
	ErrRepository = enthook.ErrRepository
	// ErrDeleting says that something was to be stored in a repository or a namespace
	// that is being deleted, itself or with its namespace, or that it was to be restored.
	ErrDeleting = enthook.ErrDeleting
	// ErrFormat says that a version is of another format than its repository.
	ErrFormat = enthook.ErrFormat
	// ErrFormats says that the database and this build know other formats: migrate
	// the one, or deploy the other.
	ErrFormats = errors.New("the database knows other formats than this build")
	// ErrNoCountingPath says that versions of a format of this build would not be
	// counted. The build is wrong: New fails.
	ErrNoCountingPath = enthook.ErrNoCountingPath
	// ErrSoftDeleted says that a repository, or its namespace, is soft-deleted and
	// takes no content until it is restored.
	ErrSoftDeleted = enthook.ErrSoftDeleted
	// ErrReferenced says that an image index refers to a manifest that was to be
	// deleted without it. The text names both digests.
	ErrReferenced = enthook.ErrReferenced
	// ErrNamespace says that a version's namespace_id is not its repository's.
	ErrNamespace = enthook.ErrNamespace
	// ErrChangedMeantime says that rows changed while a mutation with
	// predicates ran. The transaction was rolled back; run it again.
	ErrChangedMeantime = enthook.ErrChangedMeantime
	// ErrHookSetSize says that a hook of the registry's own set size_bytes on an
	// update that did not name it. In WithTx all of it is rolled back; outside,
	// the size is changed and counted by the next reconciliation only.
	ErrHookSetSize = enthook.ErrHookSetSize
	// ErrCommitUnknown says that the answer to COMMIT was lost: the transaction
	// may or may not be committed. Nothing was emitted, and a reconciliation of
	// its namespaces is requested, so the counters come right either way. Read
	// back what you wrote before you try again.
	ErrCommitUnknown = entpgx.ErrUndecided
)
