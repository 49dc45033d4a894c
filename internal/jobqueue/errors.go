package jobqueue

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/google/uuid"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// errorHandler logs jobs that failed. Of a job's arguments it shows the
// namespace only.
type errorHandler struct{ log *slog.Logger }

// HandleError logs an error; River retries as the kind wants it.
func (h *errorHandler) HandleError(ctx context.Context, job *rivertype.JobRow, err error) *river.ErrorHandlerResult {
	h.of(job).ErrorContext(ctx, "job failed", "error", err)
	return nil
}

// HandlePanic logs a panic with its stack; River retries as after an error.
func (h *errorHandler) HandlePanic(ctx context.Context, job *rivertype.JobRow, panicked any, trace string) *river.ErrorHandlerResult {
	h.of(job).ErrorContext(ctx, "job panicked", "panic", panicked, "trace", trace)
	return nil
}

func (h *errorHandler) of(job *rivertype.JobRow) *slog.Logger {
	log := h.log.With("job_id", job.ID, "kind", job.Kind, "queue", job.Queue, "attempt", job.Attempt, "max_attempts", job.MaxAttempts)
	var args struct {
		NamespaceID uuid.UUID `json:"namespace_id"`
	}
	if json.Unmarshal(job.EncodedArgs, &args) == nil && args.NamespaceID != uuid.Nil {
		log = log.With("namespace_id", args.NamespaceID)
	}
	return log
}
