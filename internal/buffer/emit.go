package buffer

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// ceiling bounds a delta and a marker: 18 digits. Redis refuses a sum that does not
// fit into 64 bits.
const ceiling = 1_000_000_000_000_000_000

// Emit adds the deltas of one committed transaction, one for each scope, to the
// buffers of one namespace and its repositories, under the marker that the
// transaction saw. It is one call of one script in one slot. The scopes in
// failed were not added (a key holds what Stowage did not write, a sum would
// overflow, or the scope is in quarantine), the others were. Of a failed scope
// one counter may have been added and the next refused.
//
// After an error of Redis's own, or of the arguments, nothing was added; after
// any other everything or nothing was, and it cannot be known which: never emit
// again, request a reconciliation of the namespace. The same for failed.
func (b *Buffer) Emit(ctx context.Context, namespace uuid.UUID, marker accounting.Marker, deltas []accounting.Delta) (failed []accounting.Scope, err error) {
	if len(deltas) == 0 {
		return nil, nil
	}
	ttl, err := millis("the buffer's TTL", b.cfg.TTL)
	if err != nil {
		return nil, err
	}
	if err := validate(namespace, marker, deltas); err != nil {
		return nil, fmt.Errorf("buffer: emit: %w", err)
	}
	bucket := accounting.Bucket(namespace)
	keys := append(make([]string, 0, 1+2*len(deltas)), bucketPrefix(bucket)+quarantineName)
	args := append(make([]string, 0, 2+3*len(deltas)), ttl, strconv.FormatInt(int64(marker), 10))
	for _, d := range deltas {
		keys = append(keys, dirtyKey(bucket, d.Scope.Kind))
		args = append(args, member(d.Scope), strconv.FormatInt(d.Bytes, 10), strconv.FormatInt(d.Components, 10))
	}
	for i := range deltas {
		keys = append(keys, bufferKey(bucket, args[2+3*i]))
	}
	refused, err := emitScript.one(ctx, b.client, keys, args).AsIntSlice()
	if err != nil {
		return nil, fmt.Errorf("buffer: emit: %w", err)
	}
	for _, i := range refused {
		failed = append(failed, deltas[i-1].Scope)
	}
	return failed, nil
}

func validate(namespace uuid.UUID, marker accounting.Marker, deltas []accounting.Delta) error {
	if err := validateMarker(marker); err != nil {
		return err
	}
	for _, d := range deltas {
		if err := validateScope(namespace, d.Scope); err != nil {
			return err
		}
		if !bounded(d.Bytes) || !bounded(d.Components) {
			return fmt.Errorf("delta of %s %s is %d bytes, %d components: at most 18 digits", d.Scope.Kind, d.Scope.ID, d.Bytes, d.Components)
		}
	}
	return nil
}

func validateMarker(marker accounting.Marker) error {
	if marker < 0 || marker >= ceiling {
		return fmt.Errorf("marker %d: must be microseconds since 1970 in at most 18 digits", marker)
	}
	return nil
}

func validateScope(namespace uuid.UUID, s accounting.Scope) error {
	switch {
	case s.Namespace != namespace:
		return fmt.Errorf("%s %s is of namespace %s, not %s", s.Kind, s.ID, s.Namespace, namespace)
	case s.Kind == accounting.KindNamespace && s.ID != namespace:
		return fmt.Errorf("namespace scope of %s has the id %s", namespace, s.ID)
	case s.Kind != accounting.KindNamespace && s.Kind != accounting.KindRepository:
		return errors.New(s.Kind.String() + ": must be a namespace or a repository")
	default:
		return nil
	}
}

func bounded(n int64) bool { return -ceiling < n && n < ceiling }
