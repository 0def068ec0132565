package pinn

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Table is a file of coefficients: one row per configuration.
type Table struct {
	Provenance map[string]string // where the coefficients come from, as the file has it
	Rows       []Row
}

// Key names a configuration of a table.
type Key struct {
	Model              string `column:"model"` // by any name that Python knows, in any case
	GPU                string `column:"gpu"`   // likewise
	TensorParallelSize int    `column:"tensor_parallel_size"`

	// Fields from here on are compared only where they are not zero.

	DataParallelSize     int    `column:"data_parallel_size"`
	PipelineParallelSize int    `column:"pipeline_parallel_size"`
	Precision            string `column:"precision"`
	KVCacheDtype         string `column:"kv_cache_dtype"`
	Engine               string `column:"engine"`
}

// Find returns the only row that a key names.
//
// It fails where Model, GPU or TensorParallelSize is not set, where no row fits, and where several
// do; their other settings are in [Row.Config], by which one of [Table.Rows] can be chosen.
func (t *Table) Find(key Key) (*Row, error) {
	var found []*Row
	for i := range t.Rows {
		found = append(found, &t.Rows[i])
	}
	fields, needed := reflect.ValueOf(key), 3 // the first ones
	for i := range fields.NumField() {
		column := fields.Type().Field(i).Tag.Get("column")
		known, value := strings.Join(firstFew(valuesOf(found, column)), ", "), fmt.Sprint(fields.Field(i))
		if fields.Field(i).IsZero() && i < needed {
			return nil, fmt.Errorf("Key has no %s: set it, the rows have %s", column, known)
		} else if fields.Field(i).IsZero() {
			continue
		}
		found = slices.DeleteFunc(found, func(r *Row) bool { return !r.has(column, value) })
		if len(found) == 0 {
			return nil, fmt.Errorf("no row has %s %q, they have %s: add it with 'pinn export table "+
				"--configs'", column, value, known)
		}
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("%d rows fit, which differ in %s: set more fields of Key, or choose one "+
			"of Table.Rows by its Config", len(found), strings.Join(firstFew(differing(found)), ", "))
	}
	return found[0], nil
}

// has tells whether a row has a value, models and GPUs by any of their names.
func (r *Row) has(column, value string) bool {
	names := append(strings.Split(r.Config[column+"_aliases"], "|"), r.Config[column])
	return slices.ContainsFunc(names, func(own string) bool {
		switch column {
		case "model":
			bare := own[strings.LastIndex(own, "/")+1:]
			return strings.EqualFold(value, own) || strings.EqualFold(value, bare)
		case "gpu":
			return plain(value) == plain(own)
		}
		return own == value
	})
}

// valuesOf returns the different values of a column, sorted.
func valuesOf(rows []*Row, name string) []string {
	seen := map[string]bool{}
	for _, r := range rows {
		seen[r.Config[name]] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// differing returns the columns in which rows differ, sorted.
func differing(rows []*Row) (columns []string) {
	for column := range rows[0].Config {
		if len(valuesOf(rows, column)) > 1 {
			columns = append(columns, column)
		}
	}
	slices.Sort(columns)
	return columns
}

// plain keeps a name's letters and digits, in lower case.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))
}

// firstFew returns the first five of many texts, and how many more there are.
func firstFew(texts []string) []string {
	if more := len(texts) - 5; more > 0 {
		return append(texts[:5:5], fmt.Sprintf("and %d more", more))
	}
	return texts
}
