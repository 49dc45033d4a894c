package schemareview

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A suppression is one line above a statement:
//
//	-- stowage:allow rule[,rule] reason
//
// It holds for that statement; in the comment that begins a file, set off by an
// empty line, for the whole file.
var allowLine = regexp.MustCompile(`^\s*--\s*stowage:allow\b[ \t]*(\S*)[ \t]*(.*)$`)

type suppression struct {
	file   string
	line   int
	rules  []string
	reason string
	// first and last line of what it holds for; last is 0 for the whole file, and
	// both are 0 when it stands where no statement follows.
	first, last int
	used        map[string]bool
}

// suppress marks the findings that a line of their file allows, and adds one for
// each line that has no reason, or that allows what nobody found.
func suppress(files []*File, findings []Finding) []Finding {
	var lines []*suppression
	for _, file := range files {
		lines = append(lines, suppressions(file)...)
	}
	for i := range findings {
		for _, s := range lines {
			if s.holdsFor(findings[i]) {
				findings[i].Blocking, findings[i].Reason = false, s.reason
			}
		}
	}
	for _, s := range lines {
		findings = append(findings, s.problems()...)
	}
	return findings
}

func (s *suppression) holdsFor(f Finding) bool {
	within := s.first > 0 && (s.last == 0 || s.first <= f.Line && f.Line <= s.last)
	if !suppressible(f.Rule) || f.File != s.file || !within || s.reason == "" || !slices.Contains(s.rules, f.Rule) {
		return false
	}
	s.used[f.Rule] = true
	return true
}

// suppressible leaves out what no reason makes right.
func suppressible(rule string) bool {
	return rule != ruleFails && !strings.HasPrefix(rule, "history/") && !strings.HasPrefix(rule, "suppression/")
}

func (s *suppression) problems() (found []Finding) {
	problem := func(rule, message string) {
		found = append(found, Finding{Rule: rule, Blocking: true, File: s.file, Line: s.line, Message: message})
	}
	if s.reason == "" {
		problem("suppression/reason", "give the reason on the line: -- stowage:allow rule[,rule] reason")
		return found
	}
	for _, rule := range s.rules {
		if !s.used[rule] {
			problem("suppression/unused", fmt.Sprintf("%s has nothing against what the line stands above: remove it", rule))
		}
	}
	return found
}

func suppressions(file *File) (found []*suppression) {
	for i, line := range strings.Split(file.content, "\n") {
		match := allowLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		s := &suppression{file: file.Name, line: i + 1, rules: strings.Split(match[1], ","), reason: strings.TrimSpace(match[2]), used: map[string]bool{}}
		s.first, s.last = reach(file, s.line)
		found = append(found, s)
	}
	return found
}

// reach are the lines that a suppression holds for.
func reach(file *File, line int) (first, last int) {
	if head, _ := file.split(); line <= strings.Count(head, "\n") {
		return 1, 0
	}
	// Inside of a statement it is above nothing.
	for _, s := range file.Statements {
		if last := s.Line + strings.Count(s.SQL, "\n"); line <= last {
			if line >= s.Line {
				return 0, 0
			}
			return s.Line, last
		}
	}
	return 0, 0
}

// split parts the comment that begins the file, and the empty line that sets it
// off, from the rest. Without that line there is no such comment.
func (f *File) split() (head, body string) {
	end := 0
	for line := range strings.Lines(f.content) {
		end += len(line)
		switch line = strings.TrimSpace(line); {
		case line == "" && end > len("\n"):
			return f.content[:end], f.content[end:]
		case !strings.HasPrefix(line, "--"):
			return "", f.content
		}
	}
	return "", f.content
}
