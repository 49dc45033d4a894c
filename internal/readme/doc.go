// Package readme holds tests only: they keep what the READMEs say true.
package readme
