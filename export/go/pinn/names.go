package pinn

import (
	"fmt"
	"slices"
	"strings"
)

// isModel tells whether a name stands for a model of one of those names: in any case, with or without
// the organisation, as in Python.
func isModel(wanted string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		bare := name[strings.LastIndex(name, "/")+1:]
		return strings.EqualFold(wanted, name) || strings.EqualFold(wanted, bare)
	})
}

// isGPU is the same for a GPU: in any case and punctuation.
func isGPU(wanted string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return plain(wanted) == plain(name) })
}

// plain keeps letters and digits.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))
}

// fewNames are as many as an error lists.
const fewNames = 5

// few of many names: the most alike to one first.
func few(names []string, near string) string {
	alike := func(name string) (shared int) {
		a, b := plain(name[strings.LastIndex(name, "/")+1:]), plain(near)
		for i := range len(b) {
			if strings.HasPrefix(a, b[:i+1]) || i > 0 && strings.Contains(a, b[i-1:i+1]) {
				shared++
			}
		}
		return shared
	}
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b string) int { return alike(b) - alike(a) })
	if rest := len(names) - fewNames; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:fewNames], ", "), rest)
	}
	return strings.Join(names, ", ")
}
