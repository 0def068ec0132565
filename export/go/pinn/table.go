package pinn

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// TableFormat and TableVersion are what a table file says it is.
const (
	TableFormat  = "pinn.coefficient_table"
	TableVersion = 1
)

// Table is a file of coefficients: one row per configuration.
type Table struct {
	Provenance map[string]any // where the coefficients come from, as the file says it
	Rows       []Row
}

// Find returns the only row whose configuration has all of the given values, such as
// {"model": "Qwen3-30B-A3B", "gpu": "H100", "tensor_parallel_size": "2"}. Models and GPUs go by
// every name that Python knows them by.
//
// It fails where none or several have them, a value is empty or a key is no column of the table.
func (t *Table) Find(want map[string]string) (*Row, error) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		switch known := t.values(key); {
		case len(known) == 0:
			return nil, fmt.Errorf("rows have no %q: they have %s", key, few(t.keys(), key))
		case want[key] == "":
			return nil, fmt.Errorf("%s is empty: the rows have %s", key, few(known, ""))
		case len(t.all(map[string]string{key: want[key]})) == 0:
			return nil, fmt.Errorf("no row has %s %q; they have %s: add it with 'pinn export table "+
				"--configs'", key, want[key], few(known, want[key]))
		}
	}
	found := t.all(want)
	if len(found) == 1 {
		return found[0], nil
	}
	return nil, fmt.Errorf("%d of %d rows have %v: name values that exactly one has",
		len(found), len(t.Rows), want)
}

// all rows that have some values.
func (t *Table) all(want map[string]string) (found []*Row) {
	for i := range t.Rows {
		if matches(t.Rows[i].Config, want) {
			found = append(found, &t.Rows[i])
		}
	}
	return found
}

// values are what the rows have under a key, each once.
func (t *Table) values(key string) []string {
	return t.each(func(name, value string) (string, bool) { return value, name == key })
}

// keys are those of the rows' configurations.
func (t *Table) keys() []string {
	return t.each(func(name, _ string) (string, bool) { return name, true })
}

func (t *Table) each(told func(name, value string) (string, bool)) []string {
	seen := map[string]bool{}
	for i := range t.Rows {
		for name, value := range t.Rows[i].Config {
			if text, counts := told(name, value); counts {
				seen[text] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func matches(config, want map[string]string) bool {
	for key, value := range want {
		names := append(strings.Split(config[key+"_aliases"], "|"), config[key])
		switch {
		case key == "model" && isModel(value, names...):
		case key == "gpu" && isGPU(value, names...):
		case config[key] != value:
			return false
		}
	}
	return true
}

// checkVersion refuses files of another kind or version.
func checkVersion(kind, format string, version, known int) error {
	switch {
	case format != kind:
		return fmt.Errorf("the file's format is %q, expected %q: write it with 'pinn export'",
			format, kind)
	case version > known:
		return fmt.Errorf("the file has version %d, newer than %d, which this package reads: "+
			"update the Go package pinn", version, known)
	case version < known:
		return fmt.Errorf("the file has version %d, older than %d, which this package reads: "+
			"export it again, or use the Go package of the program that wrote it", version, known)
	}
	return nil
}

// kinds of the named numbers of a row, and what each names.
var kinds = map[string]string{
	"beta": "feature", "beta_low": "feature", "beta_high": "feature",
	"alpha": "feature", "alpha_low": "feature", "alpha_high": "feature",
	cost: "cost", draftCost: "cost", "draft": "draft",
}

const (
	cost      = "cost"
	draftCost = "draft_cost"
)

// places are where the named numbers of a row go, by the names of their columns, such as
// "beta.layer [s/layer]"; those of drafts, which are whole, by way of counts.
func (r *Row) places(counts *[3]float64) map[string]*float64 {
	found := map[string]*float64{
		"draft.tokens": &counts[0], "draft.passes": &counts[1], "draft.branches": &counts[2],
	}
	registry := func(kind string, features []Feature, values ...[]float64) {
		for i, feature := range features {
			for j, end := range []string{"", "_low", "_high"} {
				found[kind+end+"."+columnName(feature)] = &values[j][i]
			}
		}
	}
	registry("beta", StepFeatures(), r.Beta, r.BetaLow, r.BetaHigh)
	registry("alpha", RequestFeatures(), r.Alpha, r.AlphaLow, r.AlphaHigh)
	for _, c := range costNames {
		found[cost+"."+c.name] = c.field(&r.Costs)
		found[draftCost+"."+c.name] = c.field(&r.Drafts.Costs)
	}
	return found
}

// emptyRow has room for everything.
func emptyRow() Row {
	unknown := func(n int) []float64 { return slices.Repeat([]float64{math.NaN()}, n) }
	b, a := numStepFeatures, len(requestFeatures)
	return Row{
		Config: map[string]string{}, Drafts: &Drafts{},
		Beta: make([]float64, b), BetaLow: unknown(b), BetaHigh: unknown(b),
		Alpha: make([]float64, a), AlphaLow: unknown(a), AlphaHigh: unknown(a),
	}
}

func columnName(f Feature) string { return fmt.Sprintf("%s [%s]", f.Name, f.Unit) }

// needed tells whether a cell of a kind may not be empty.
func needed(kind string) bool { return kind == "beta" || kind == "alpha" || kind == cost }

// checkColumns refuses columns that this package does not know, that occur twice or that lack.
func checkColumns(names []string) error {
	r, seen := emptyRow(), map[string]bool{}
	known := r.places(&[3]float64{})
	for _, name := range names {
		if seen[name] {
			return fmt.Errorf("column %q occurs twice", name)
		}
		seen[name] = true
		kind, rest, dotted := strings.Cut(name, ".")
		if !dotted || known[name] != nil {
			continue
		}
		what := kinds[kind]
		if what == "" {
			what, rest = "kind of column", kind
		}
		return fmt.Errorf("this package knows no %s %q: it was written by another version of pinn, "+
			"use the Go package of that version", what, rest)
	}
	var missing []string
	for name := range known {
		kind, _, _ := strings.Cut(name, ".")
		if !seen[name] && (needed(kind) || kind == draftCost && seen["draft.tokens"]) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("columns are missing: %s; export the table again with this version of pinn",
		few(missing, ""))
}

// readRow makes and checks a row of cells by their columns, which are known.
func readRow(cells map[string]string, where string) (Row, error) {
	r, counts := emptyRow(), [3]float64{}
	places := r.places(&counts)
	bounded, drafts := false, false
	for _, name := range slices.Sorted(maps.Keys(cells)) {
		text, place := cells[name], places[name]
		kind, _, _ := strings.Cut(name, ".")
		bounded = bounded || strings.HasSuffix(kind, "_low") || strings.HasSuffix(kind, "_high")
		drafts = drafts || text != "" && (kinds[kind] == "draft" || kind == draftCost)
		if text == "" && !needed(kind) {
			continue
		}
		if place == nil {
			r.Config[name] = text
			continue
		}
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return r, fmt.Errorf("%s: %s: expected a number, got %q", where, name, text)
		}
		*place = number
	}
	if !bounded {
		r.BetaLow, r.BetaHigh, r.AlphaLow, r.AlphaHigh = nil, nil, nil, nil
	}
	for i, place := range []*int64{&r.Drafts.Tokens, &r.Drafts.Passes, &r.Drafts.Branches} {
		*place = wholeCount(counts[i])
	}
	if !drafts && r.Config["draft_acceptance"] == "" {
		r.Drafts = nil
	}
	if err := r.readSettings(); err != nil {
		return r, fmt.Errorf("%s: %w", where, err)
	}
	return r, r.check(where)
}

// wholeCount of drafts; -1, which is refused, for what is none.
func wholeCount(v float64) int64 {
	if v != math.Trunc(v) || v < 0 || v > mostDrafted {
		return -1
	}
	return int64(v)
}

// readSettings takes what features need from the configuration's text.
func (r *Row) readSettings() error {
	var window float64
	var refused []error
	for name, place := range map[string]*float64{
		"window_tokens": &window, "gpu_cache_tokens": &r.GPUCacheTokens,
	} {
		text := r.Config[name]
		if text == "" {
			continue
		}
		var err error
		if *place, err = strconv.ParseFloat(text, 64); err != nil {
			refused = append(refused, fmt.Errorf("%s must be a number, got %q", name, text))
		}
	}
	r.WindowTokens = int64(window)
	if float64(r.WindowTokens) != window || r.Config["window_tokens"] != "" && window < 1 {
		refused = append(refused, fmt.Errorf("window_tokens must be a whole number of at least 1 or "+
			"empty, got %q", r.Config["window_tokens"]))
	}
	if text := r.Config["draft_acceptance"]; text != "" {
		rates, err := readRates("draft_acceptance", text)
		r.Drafts.Acceptance, refused = rates, append(refused, err)
	}
	prefixes := r.Config["enable_prefix_caching"]
	if r.PrefixCaching = prefixes == "true"; !r.PrefixCaching && prefixes != "false" {
		refused = append(refused, fmt.Errorf("enable_prefix_caching must be true or false, got %q", prefixes))
	}
	return errors.Join(refused...)
}
