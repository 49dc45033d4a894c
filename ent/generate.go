// Package ent is the client that Ent generates from ent/schema. Make it with
// ent/entdb, which wires the counting; a client made with NewClient counts
// nothing.
package ent

//go:generate go run ../internal/entgen
