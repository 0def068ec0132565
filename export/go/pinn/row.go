package pinn

import (
	"fmt"
	"math"
)

// Row is one configuration: what it is, its coefficients and its datasheet costs, in seconds.
type Row struct {
	// Config holds the columns that say what the row is: model, gpu, precision and vLLM's flags,
	// each as text.
	Config map[string]string

	Beta  []float64 // in the order of StepFeatures
	Alpha []float64 // in the order of RequestFeatures
	Costs Costs

	Drafts *Drafts // what a step drafts and verifies; nil without speculative decoding

	// BetaLow, BetaHigh, AlphaLow and AlphaHigh bound the coefficients where that is known, and are
	// nil elsewhere. A single coefficient that has none is NaN.
	BetaLow, BetaHigh, AlphaLow, AlphaHigh []float64

	WindowTokens   int64   // of the windowed layers; 0 where every layer sees everything
	GPUCacheTokens float64 // whose keys and values of one head its cache holds; 0 if the table is silent
	PrefixCaching  bool
}

// check refuses what cannot be a latency; where names the row.
func (r *Row) check(where string) error {
	config := r.Config["speculative_config"]
	switch speculates := config != "" && config != "none"; {
	case r.Drafts != nil:
		if err := r.Drafts.check(where); err != nil {
			return err
		}
	case speculates:
		return fmt.Errorf("%s: speculative_config %s, but no draft columns say what a step drafts: "+
			"export the table again with this version of pinn", where, config)
	}
	if err := checkCoefficients(where, r.Beta, r.Alpha); err != nil {
		return err
	}
	if err := r.Costs.check(where, cost); err != nil {
		return err
	}
	if r.WindowTokens < 0 {
		return fmt.Errorf("%s: window_tokens must not be negative, got %d", where, r.WindowTokens)
	}
	if !usable(r.GPUCacheTokens) {
		return unusable(where, "gpu_cache_tokens", r.GPUCacheTokens)
	}
	return nil
}

func checkCoefficients(where string, beta, alpha []float64) error {
	for i, v := range beta {
		if !usable(v) {
			return unusable(where, "beta."+stepFeatures[i].Name, v)
		}
	}
	for i, v := range alpha {
		if !usable(v) {
			return unusable(where, "alpha."+requestFeatures[i].Name, v)
		}
	}
	return nil
}

func (c *Costs) check(where, kind string) error {
	for _, cost := range costNames {
		if v := *cost.field(c); !usable(v) {
			return unusable(where, kind+"."+cost.name, v)
		}
	}
	if c.ExpertShare > 1 {
		return fmt.Errorf("%s: %s.expert_share must be at most 1, got %v", where, kind, c.ExpertShare)
	}
	return nil
}

func usable(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

func unusable(where, name string, v float64) error {
	return fmt.Errorf("%s: %s must be finite and not negative, got %v; export the table again",
		where, name, v)
}

// phaseSeconds adds up a phase's alpha x feature.
func (r *Row) phaseSeconds(phase string, promptTokens float64) float64 {
	total := 0.0
	for i, f := range requestFeatures {
		switch {
		case f.phase == phase && f.perPrompt:
			total += r.Alpha[i] * promptTokens
		case f.phase == phase:
			total += r.Alpha[i]
		}
	}
	return total
}
