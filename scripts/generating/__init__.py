"""Source of formulas and flags in Go and compiled code, written from the registries."""
