// Package alerts holds the alerting rules for Prometheus. README.md beside this
// file says what to do about each.
package alerts

import _ "embed"

// Rules is a rule file of Prometheus.
//
//go:embed rules.yaml
var Rules string
