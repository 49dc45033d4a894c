package pgdb

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes that callers tell apart.
const (
	codeLockTimeout         = "55P03"
	codeForeignKeyViolation = "23503"
	codeCheckViolation      = "23514"
	codeNoPrivilege         = "42501"
	codeNoTable             = "42P01"
	classDataException      = "22"
)

// IsLockTimeout reports whether a statement waited longer than lock_timeout.
func IsLockTimeout(err error) bool { return is(err, codeLockTimeout) }

// IsForeignKeyViolation reports whether a row that is referred to is missing,
// or a row that is still referred to was to be deleted.
func IsForeignKeyViolation(err error) bool { return is(err, codeForeignKeyViolation) }

// IsNoPartition reports whether a partitioned table has no partition for a
// row. It shares its code with failed CHECKs, which name their constraint.
func IsNoPartition(err error) bool {
	pgErr := serverError(err)
	return pgErr != nil && pgErr.Code == codeCheckViolation && pgErr.ConstraintName == ""
}

// IsDataException reports whether a value is at fault, such as a sum that does
// not fit a bigint (22003): the same statement will fail again.
func IsDataException(err error) bool {
	pgErr := serverError(err)
	return pgErr != nil && strings.HasPrefix(pgErr.Code, classDataException)
}

// IsNoPrivilege reports whether the role lacks a right.
func IsNoPrivilege(err error) bool { return is(err, codeNoPrivilege) }

// IsNoTable reports whether a table is not there.
func IsNoTable(err error) bool { return is(err, codeNoTable) }

func is(err error, code string) bool {
	pgErr := serverError(err)
	return pgErr != nil && pgErr.Code == code
}

// serverError is the server's error in the chain of err, or nil.
func serverError(err error) *pgconn.PgError {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr
	}
	return nil
}
