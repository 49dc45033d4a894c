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
	batch, errBatch := uuid.Parse(fields[fieldBatch])
	marker, errMarker := strconv.ParseInt(fields[fieldMarker], 10, 64)
	bytes, errBytes := strconv.ParseInt(fields[fieldBytes], 10, 64)
	components, errComponents := strconv.ParseInt(fields[fieldComponents], 10, 64)
	emissions, errEmissions := strconv.ParseInt(fields[fieldEmissions], 10, 64)
	return accounting.Flush{
		Scope: scope, BatchID: batch, Marker: accounting.Marker(marker),
		Counters:  accounting.Counters{Bytes: bytes, Components: components},
		Emissions: emissions,
	}, errors.Join(errBatch, errMarker, errBytes, errComponents, errEmissions)
}

// parseBuffer reads the hash of a buffer, sorted by marker.
func parseBuffer(fields map[string]string) ([]MarkedCounters, error) {
	byMarker := make(map[accounting.Marker]MarkedCounters)
	for field, text := range fields {
		marker, counter, err := parseField(field)
		if err != nil {
			return nil, err
		}
		value, err := strconv.ParseInt(text, 10, 64)
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
	sorted := make([]MarkedCounters, 0, len(byMarker))
	for _, m := range byMarker {
		sorted = append(sorted, m)
	}
	slices.SortFunc(sorted, func(a, b MarkedCounters) int { return cmp.Compare(a.Marker, b.Marker) })
	return sorted, nil
}

func parseField(field string) (accounting.Marker, string, error) {
	text, counter, _ := strings.Cut(field, ":")
	marker, err := strconv.ParseInt(text, 10, 64)
	return accounting.Marker(marker), counter, err
}
