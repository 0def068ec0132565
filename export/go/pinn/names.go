package pinn

import "strings"

// isModel tells whether a name stands for a model of that full name and those aliases: in any case,
// with or without the organisation, as in Python.
func isModel(wanted, full string, aliases []string) bool {
	for _, name := range append([]string{full}, aliases...) {
		bare := name[strings.LastIndex(name, "/")+1:]
		if strings.EqualFold(wanted, name) || strings.EqualFold(wanted, bare) {
			return true
		}
	}
	return false
}

// isGPU is the same for a GPU: in any case and punctuation.
func isGPU(wanted, full string, aliases []string) bool {
	for _, name := range append([]string{full}, aliases...) {
		if plain(wanted) == plain(name) {
			return true
		}
	}
	return false
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
