package config

import "log/slog"

// redacted stands wherever a secret would be shown.
const redacted = "[redacted]"

// Secret is a text that shows itself to nobody who does not ask by Reveal:
// formatting, logging and marshaling give a fixed word, or nothing if it is
// empty. It holds a pointer because fmt passes by methods, for some verbs and
// inside unexported fields; it then shows an address.
type Secret struct{ text *string }

// NewSecret hides a text. An empty one gives the zero Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: &text}
}

// Reveal returns the text, for the one place that needs it.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsSet reports whether there is a text.
func (s Secret) IsSet() bool { return s.text != nil }

// String is the fixed word, or empty.
func (s Secret) String() string {
	if s.IsSet() {
		return redacted
	}
	return ""
}

// LogValue is what slog shows.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is what JSON and YAML show.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
