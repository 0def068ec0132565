package pinn

import (
	"errors"
	"fmt"
	"math"
	"sort"
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
// It fails where none or several have them.
func (t *Table) Find(want map[string]string) (*Row, error) {
	var found []*Row
	for i := range t.Rows {
		if matches(t.Rows[i].Config, want) {
			found = append(found, &t.Rows[i])
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	for _, key := range []string{"model", "gpu"} {
		one := map[string]string{key: want[key]}
		if want[key] == "" || t.any(one) {
			continue
		}
		return nil, fmt.Errorf("no row has %s %q; they have %s: add it with 'pinn export table "+
			"--configs'", key, want[key], strings.Join(t.values(key), ", "))
	}
	return nil, fmt.Errorf("%d of %d rows have %v: name values that exactly one has",
		len(found), len(t.Rows), want)
}

func (t *Table) any(want map[string]string) bool {
	for i := range t.Rows {
		if matches(t.Rows[i].Config, want) {
			return true
		}
	}
	return false
}

// values are what the rows have under a key, each once.
func (t *Table) values(key string) []string {
	var found []string
	seen := map[string]bool{}
	for i := range t.Rows {
		if value := t.Rows[i].Config[key]; !seen[value] {
			seen[value] = true
			found = append(found, value)
		}
	}
	return found
}

func matches(config, want map[string]string) bool {
	for key, value := range want {
		others := strings.Split(config[key+"_aliases"], "|")
		switch {
		case key == "model" && isModel(value, config[key], others):
		case key == "gpu" && isGPU(value, config[key], others):
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

// kinds of named values in a row.
const (
	beta      = "beta"
	alpha     = "alpha"
	cost      = "cost"
	betaLow   = "beta_low"
	betaHigh  = "beta_high"
	alphaLow  = "alpha_low"
	alphaHigh = "alpha_high"
	draft     = "draft"
	draftCost = "draft_cost"
)

// columns puts the values of a flat row where they belong.
type columns struct {
	set      []func(*Row, float64) // per column; nil for text
	name     []string
	optional []bool // whether a cell may be empty
	bounded  bool
}

// readColumns understands the column names of a table, such as "beta.layer [s/layer]".
func readColumns(names []string) (*columns, error) {
	c := &columns{name: names, set: make([]func(*Row, float64), len(names))}
	c.optional = make([]bool, len(names))
	seen := map[string]bool{}
	for i, column := range names {
		if seen[column] {
			return nil, fmt.Errorf("column %q occurs twice", column)
		}
		seen[column] = true
		kind, rest, dotted := strings.Cut(column, ".")
		if !dotted {
			continue
		}
		set, err := setter(kind, rest)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", column, err)
		}
		c.set[i] = set
		drafts := kind == draft || kind == draftCost
		c.optional[i] = kind != beta && kind != alpha && kind != cost
		c.bounded = c.bounded || c.optional[i] && !drafts
	}
	return c, checkComplete(seen)
}

// setter finds the place of a named value.
func setter(kind, rest string) (func(*Row, float64), error) {
	switch kind {
	case cost:
		return costSetter(rest, func(r *Row) *Costs { return &r.Costs })
	case draftCost:
		return costSetter(rest, func(r *Row) *Costs { return &r.drafting().Costs })
	case draft:
		return draftSetter(rest)
	}
	var place func(*Row) []float64
	registry := StepFeatures()
	switch kind {
	case beta:
		place = func(r *Row) []float64 { return r.Beta }
	case betaLow:
		place = func(r *Row) []float64 { return r.BetaLow }
	case betaHigh:
		place = func(r *Row) []float64 { return r.BetaHigh }
	case alpha, alphaLow, alphaHigh:
		registry = RequestFeatures()
		place = map[string]func(*Row) []float64{
			alpha:     func(r *Row) []float64 { return r.Alpha },
			alphaLow:  func(r *Row) []float64 { return r.AlphaLow },
			alphaHigh: func(r *Row) []float64 { return r.AlphaHigh },
		}[kind]
	default:
		return nil, unknownName("kind of column", kind)
	}
	for i, feature := range registry {
		if rest == columnName(feature) {
			return func(r *Row, v float64) { place(r)[i] = v }, nil
		}
	}
	return nil, unknownName("feature", rest)
}

func costSetter(name string, costs func(*Row) *Costs) (func(*Row, float64), error) {
	for _, known := range costNames {
		if known.name == name {
			return func(r *Row, v float64) { *known.field(costs(r)) = v }, nil
		}
	}
	return nil, unknownName("cost", name)
}

func draftSetter(name string) (func(*Row, float64), error) {
	place, known := map[string]func(*Drafts) *int64{
		"tokens":   func(d *Drafts) *int64 { return &d.Tokens },
		"passes":   func(d *Drafts) *int64 { return &d.Passes },
		"branches": func(d *Drafts) *int64 { return &d.Branches },
	}[name]
	if !known {
		return nil, unknownName("draft", name)
	}
	return func(r *Row, v float64) { *place(r.drafting()) = wholeCount(v) }, nil
}

// wholeCount of drafts; -1, which is refused, for what is none.
func wholeCount(v float64) int64 {
	if v != math.Trunc(v) || v < 0 || v > mostDrafted {
		return -1
	}
	return int64(v)
}

// drafting are the drafts of a row that has some.
func (r *Row) drafting() *Drafts {
	if r.Drafts == nil {
		r.Drafts = &Drafts{}
	}
	return r.Drafts
}

func unknownName(what, name string) error {
	return fmt.Errorf("this package knows no %s %q: it was written by another version of pinn, "+
		"use the Go package of that version", what, name)
}

func columnName(f Feature) string { return fmt.Sprintf("%s [%s]", f.Name, f.Unit) }

// checkComplete refuses tables that lack a coefficient or a cost.
func checkComplete(seen map[string]bool) error {
	var missing []string
	for _, f := range stepFeatures {
		if name := beta + "." + columnName(f); !seen[name] {
			missing = append(missing, name)
		}
	}
	for _, f := range requestFeatures {
		if name := alpha + "." + columnName(f.Feature); !seen[name] {
			missing = append(missing, name)
		}
	}
	for _, c := range costNames {
		if name := cost + "." + c.name; !seen[name] {
			missing = append(missing, name)
		}
	}
	if seen[draft+".tokens"] {
		for _, c := range costNames {
			if name := draftCost + "." + c.name; !seen[name] {
				missing = append(missing, name)
			}
		}
	}
	if len(missing) > 0 {
		sort.Strings(missing)
		return fmt.Errorf("columns are missing: %s; export the table again with this version of "+
			"pinn", strings.Join(missing, ", "))
	}
	return nil
}

// value is one cell: a number, text, or neither.
type value struct {
	text    string
	number  float64
	numeric bool
}

var errNoNumber = errors.New("expected a number")

// row makes and checks a row of cells.
func (c *columns) row(cells []value, where string) (Row, error) {
	r := c.emptyRow()
	for i, cell := range cells {
		if c.set[i] == nil {
			if cell.text != "" {
				r.Config[c.name[i]] = cell.text
			}
			continue
		}
		if cell.text == "" && c.optional[i] {
			continue
		}
		if !cell.numeric {
			return r, fmt.Errorf("%s: %s: %w, got %q", where, c.name[i], errNoNumber, cell.text)
		}
		c.set[i](&r, cell.number)
	}
	if err := r.readSettings(); err != nil {
		return r, fmt.Errorf("%s: %w", where, err)
	}
	return r, r.check(where)
}

func (c *columns) emptyRow() Row {
	r := Row{
		Config: map[string]string{},
		Beta:   make([]float64, numStepFeatures),
		Alpha:  make([]float64, len(requestFeatures)),
	}
	if c.bounded {
		r.BetaLow, r.BetaHigh = unknown(len(r.Beta)), unknown(len(r.Beta))
		r.AlphaLow, r.AlphaHigh = unknown(len(r.Alpha)), unknown(len(r.Alpha))
	}
	return r
}

func unknown(n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = math.NaN()
	}
	return values
}

// readSettings takes what features need from the configuration's text.
func (r *Row) readSettings() error {
	var err error
	if text := r.Config["window_tokens"]; text != "" {
		if r.WindowTokens, err = strconv.ParseInt(text, 10, 64); err != nil || r.WindowTokens < 1 {
			return fmt.Errorf("window_tokens must be a whole number of at least 1 or empty, got %q",
				text)
		}
	}
	if text := r.Config["gpu_cache_tokens"]; text != "" {
		if r.GPUCacheTokens, err = strconv.ParseFloat(text, 64); err != nil {
			return fmt.Errorf("gpu_cache_tokens must be a number or empty, got %q", text)
		}
	}
	if text := r.Config["draft_acceptance"]; text != "" {
		if err = r.drafting().readAcceptance(text); err != nil {
			return err
		}
	}
	for name, place := range map[string]*float64{
		"max_model_len": &r.MaxModelLen, "tensor_parallel_size": &r.TensorParallel,
	} {
		if *place, err = strconv.ParseFloat(r.Config[name], 64); err != nil {
			return fmt.Errorf("%s must be a number, got %q", name, r.Config[name])
		}
	}
	for name, place := range map[string]*bool{
		"enable_prefix_caching": &r.PrefixCaching, "enable_chunked_prefill": &r.ChunkedPrefill,
	} {
		switch r.Config[name] {
		case "true":
			*place = true
		case "false":
		default:
			return fmt.Errorf("%s must be true or false, got %q", name, r.Config[name])
		}
	}
	return nil
}
