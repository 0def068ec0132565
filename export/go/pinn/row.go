package pinn

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// graphSizes is the column of Row.GraphSizes.
const graphSizes = "graph_sizes"

// Row is one configuration: its flags, its coefficients and its datasheet costs, in seconds.
type Row struct {
	// Config has the columns that describe the row (model, gpu, precision, the engine's flags and
	// provenance), each as text. Empty cells are left out.
	Config map[string]string

	Beta  StepValues
	Alpha RequestValues
	Costs Costs

	Drafts *Drafts // what a step drafts and verifies; nil without speculative decoding

	// Ends of the coefficients' intervals; NaN where the table has none.

	BetaLow, BetaHigh   StepValues
	AlphaLow, AlphaHigh RequestValues

	GraphSizes     []int64 // decodes for which CUDA graphs are captured, ascending; a batch is padded to the next
	WindowTokens   int64   // attention window of the windowed layers; 0 without one
	GPUCacheTokens float64 // tokens whose keys and values of one head the GPU's cache holds; 0: unknown
	PrefixCaching  bool
}

// emptyRow returns a row with room for everything.
func emptyRow() *Row {
	r := &Row{Config: map[string]string{}, Drafts: &Drafts{}}
	for column, place := range r.places() {
		if isEnd(column) {
			*place = math.NaN()
		}
	}
	return r
}

// places returns where a row's numbers are, by their columns.
func (r *Row) places() map[string]*float64 {
	found := map[string]*float64{}
	under(found, "beta.", &r.Beta)
	under(found, "beta_low.", &r.BetaLow)
	under(found, "beta_high.", &r.BetaHigh)
	under(found, "alpha.", &r.Alpha)
	under(found, "alpha_low.", &r.AlphaLow)
	under(found, "alpha_high.", &r.AlphaHigh)
	under(found, "cost.", &r.Costs)
	if r.Drafts != nil {
		under(found, "draft_cost.", &r.Drafts.Costs)
	}
	found["gpu_cache_tokens"] = &r.GPUCacheTokens
	return found
}

func under[T StepValues | RequestValues | Costs](found map[string]*float64, prefix string, s *T) {
	for column, place := range numbers(s) {
		found[prefix+column] = place
	}
}

// isEnd tells whether a column of numbers has ends of intervals.
func isEnd(column string) bool {
	return strings.Contains(column, "_low.") || strings.Contains(column, "_high.")
}

// isNeeded tells whether the cells of a column of numbers must not be empty.
func isNeeded(column string) bool {
	return strings.HasPrefix(column, "beta.") || strings.HasPrefix(column, "alpha.") ||
		strings.HasPrefix(column, "cost.")
}

// readRow makes a row of cells by their columns, which are known.
func readRow(cells map[string]string) (*Row, error) {
	r := emptyRow()
	places := r.places()
	for _, column := range slices.Sorted(maps.Keys(cells)) {
		text, place := cells[column], places[column]
		if text == "" && !isNeeded(column) {
			continue
		}
		if place == nil {
			r.Config[column] = text
			continue
		}
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, refused(column, "a number", text)
		}
		*place = number
	}
	if err := r.readConfig(); err != nil {
		return nil, err
	}
	return r, r.check()
}

// readConfig sets the fields that are settings of the configuration.
func (r *Row) readConfig() (err error) {
	if r.WindowTokens, err = r.whole("window_tokens"); err != nil {
		return err
	}
	if err := r.readGraphSizes(); err != nil {
		return err
	}
	prefixes := r.Config["enable_prefix_caching"]
	if r.PrefixCaching = prefixes == "true"; !r.PrefixCaching && prefixes != "false" {
		return refused("enable_prefix_caching", "true or false", prefixes)
	}
	return r.readDrafts()
}

// readGraphSizes sets the sizes of CUDA graphs, none for an empty cell.
func (r *Row) readGraphSizes() error {
	text := r.Config[graphSizes]
	if text == "" {
		return nil
	}
	for _, word := range strings.Split(text, ",") {
		size, err := strconv.ParseInt(word, 10, 32)
		if err != nil || size < 1 || len(r.GraphSizes) > 0 && size <= r.GraphSizes[len(r.GraphSizes)-1] {
			return refused(graphSizes, "ascending numbers of decodes with commas between them", text)
		}
		r.GraphSizes = append(r.GraphSizes, size)
	}
	return nil
}

// whole returns a column of Config as a whole number, 0 for an empty cell.
func (r *Row) whole(column string) (int64, error) {
	text := r.Config[column]
	if text == "" {
		return 0, nil
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || number != math.Trunc(number) || !(number >= 0 && number <= 1<<53) {
		return 0, refused(column, "a whole number", text)
	}
	return int64(number), nil
}

// check returns an error that names what cannot be a latency.
func (r *Row) check() error {
	places := r.places()
	for _, column := range slices.Sorted(maps.Keys(places)) {
		if v := *places[column]; !isEnd(column) && !(v >= 0 && !math.IsInf(v, 1)) {
			return refused(column, "finite and not negative", v)
		} else if strings.HasSuffix(column, "cost.expert_share") && v > 1 {
			return refused(column, "at most 1", v)
		}
	}
	if r.WindowTokens < 0 {
		return refused("window_tokens", "not negative", r.WindowTokens)
	}
	config := r.Config["speculative_config"]
	if r.Drafts != nil {
		return r.Drafts.check()
	} else if config != "" && config != "none" {
		return fmt.Errorf("speculative_config is %s, but no draft columns say what a step drafts: "+
			"export the table again with this version of pinn", config)
	}
	return nil
}

// refused returns the error of a cell.
func refused(column, expected string, got any) error {
	return fmt.Errorf("%s must be %s, got %v: export the table again", column, expected, got)
}
