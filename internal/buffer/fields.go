package buffer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// The fields of a flush, and, but for the first two, the counters of a buffer.
const (
	fieldBatch      = "batch"
	fieldMarker     = "marker"
	fieldBytes      = "bytes"
	fieldComponents = "components"
	fieldEmissions  = "emissions"
)

// parseFlush reads the hash of a flush: exactly its five fields.
func parseFlush(scope accounting.Scope, fields map[string]string) (accounting.Flush, error) {
	if len(fields) != 5 {
		return accounting.Flush{}, fmt.Errorf("flush has %d fields instead of 5", len(fields))
	}
	batch, errBatch := parseBatch(fields[fieldBatch])
	marker, errMarker := parseMarker(fields[fieldMarker])
	bytes, errBytes := parseNumber(fields[fieldBytes])
	components, errComponents := parseNumber(fields[fieldComponents])
	emissions, errEmissions := parseNumber(fields[fieldEmissions])
	return accounting.Flush{
		Scope: scope, BatchID: batch, Marker: marker,
		Counters:  accounting.Counters{Bytes: bytes, Components: components},
		Emissions: emissions,
	}, errors.Join(errBatch, errMarker, errBytes, errComponents, errEmissions)
}

// parseBatch takes a batch id only as Claim writes it: finish.lua compares
// text, and the ledger is partitioned by the time in it.
func parseBatch(text string) (uuid.UUID, error) {
	batch, err := uuid.Parse(text)
	if err == nil && (batch.String() != text || batch.Version() != 7) {
		err = fmt.Errorf("batch %q is no UUIDv7 in lower case", text)
	}
	return batch, err
}

// parseNumber takes what claim.lua takes: no sign but a minus, no leading zero.
func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && strconv.FormatInt(n, 10) != text {
		err = fmt.Errorf("%q is not written as Redis writes numbers", text)
	}
	return n, err
}

// parseMarker takes what Emit takes.
func parseMarker(text string) (accounting.Marker, error) {
	n, err := parseNumber(text)
	if err != nil {
		return 0, err
	}
	marker := accounting.Marker(n)
	return marker, validateMarker(marker)
}

// parseBuffer reads the hash of a buffer, sorted by marker.
func parseBuffer(fields map[string]string) ([]MarkedCounters, error) {
	byMarker := make(map[accounting.Marker]MarkedCounters)
	for field, number := range fields {
		text, counter, _ := strings.Cut(field, ":")
		marker, err := parseMarker(text)
		if err != nil {
			return nil, err
		}
		value, err := parseNumber(number)
		if err != nil {
			return nil, err
		}
		m := byMarker[marker]
		m.Marker = marker
		switch counter {
		case fieldBytes:
			m.Bytes = value
		case fieldComponents:
			m.Components = value
		case fieldEmissions:
			m.Emissions = value
		default:
			return nil, fmt.Errorf("field %q of a buffer", field)
		}
		byMarker[marker] = m
	}
	var sorted []MarkedCounters
	for _, m := range byMarker {
		sorted = append(sorted, m)
	}
	slices.SortFunc(sorted, func(a, b MarkedCounters) int { return cmp.Compare(a.Marker, b.Marker) })
	return sorted, nil
}
