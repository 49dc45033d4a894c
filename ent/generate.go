package ent

//go:generate go run ../internal/entgen
