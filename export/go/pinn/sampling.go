package pinn

import (
	"encoding/json"
	"fmt"
	"math"
)

// Sampling is how next tokens are drawn, as Python's pinn.specs.sampling. DefaultSampling gives
// vLLM's own; a zero TopP or RepetitionPenalty is no setting.
type Sampling struct {
	Temperature       float64 `json:"temperature"`
	TopK              int64   `json:"top_k"`
	TopP              float64 `json:"top_p"`
	MinP              float64 `json:"min_p"`
	RepetitionPenalty float64 `json:"repetition_penalty"`
}

// DefaultSampling is vLLM's own, which draws from all tokens.
func DefaultSampling() Sampling { return Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1} }

func (s Sampling) check() error {
	for _, rule := range []struct {
		name  string
		holds bool
	}{
		{"temperature", usable(s.Temperature)},
		{"top_k", s.TopK >= -1},
		{"top_p", s.TopP > 0 && s.TopP <= 1},
		{"min_p", s.MinP >= 0 && s.MinP <= 1},
		{"repetition_penalty", usable(s.RepetitionPenalty) && s.RepetitionPenalty > 0},
	} {
		if !rule.holds {
			return fmt.Errorf("sampling: %s cannot be used in %+v", rule.name, s)
		}
	}
	return nil
}

// overridden puts the settings of vLLM's --override-generation-config in their place; null stands
// for vLLM's own default.
func (s Sampling) overridden(override string) (Sampling, error) {
	if override == "" {
		return s, nil
	}
	var given map[string]*float64
	if err := json.Unmarshal([]byte(override), &given); err != nil || given == nil {
		return s, fmt.Errorf("override_generation_config %q must be a JSON object of numbers", override)
	}
	topK := float64(s.TopK)
	settings := map[string]struct {
		place    *float64
		standard float64
	}{
		"temperature": {&s.Temperature, 1}, "top_k": {&topK, 0}, "top_p": {&s.TopP, 1},
		"min_p": {&s.MinP, 0}, "repetition_penalty": {&s.RepetitionPenalty, 1},
		"max_new_tokens": {new(float64), 0}, // vLLM reads it; no step depends on it
	}
	for name, value := range given {
		setting, known := settings[name]
		if !known {
			return s, fmt.Errorf("override_generation_config: unknown setting %q", name)
		}
		if value == nil {
			value = &setting.standard
		}
		*setting.place = *value
	}
	if topK != math.Trunc(topK) || math.Abs(topK) > largest {
		return s, fmt.Errorf("override_generation_config: top_k must be a whole number, got %v", topK)
	}
	s.TopK = int64(topK)
	return s, s.check()
}

// Bytes that each kernel of vLLM's own sampler reads and writes per logit, as Python's
// pinn.physics.sampling, which has their sources.
const (
	copyBytes    = 2 + 4
	largestBytes = 4
	softmaxBytes = 4 + 4
	drawBytes    = (4 + 4) + softmaxBytes + 4 + (4 + 4 + 4)
	maskBytes    = (4 + 1) + (4 + 1 + 4)
	countBytes   = 5*4 + maskBytes
	sortBytes    = 8 + 4 + 4*2*(4+8) + (8 + 2*8) + (8 + 4 + 4 + 8)
	massBytes    = sortBytes + softmaxBytes + (4 + 4) + maskBytes + (4 + 4) + (4 + 8 + 4)
	ratioBytes   = softmaxBytes + 4 + maskBytes
	penaltyBytes = 2*(8+8+1) + (1 + 1) + (8 + 4 + 4 + 4 + 4) + (1 + 4 + 4 + 4 + 4)
)

// samplerKernels that a setting asks for: their bytes per logit, how far they are from the
// bandwidth, and what they take whatever the batch, as Python's pinn.physics.sampling.
type samplerKernels struct {
	logitBytes, slowdown, launchS, logitS float64
}

var (
	taken           = samplerKernels{copyBytes + largestBytes, 1.4, 1.1e-5, 2.5e-11}
	drawn           = samplerKernels{drawBytes, 1.2, 1.1e-5, 2.7e-10}
	mass            = samplerKernels{massBytes, 2.1, 7.5e-5, 7.8e-10}
	countBesideMass = samplerKernels{maskBytes, 0.81, 1.2e-5, 1.7e-10}
	penalized       = samplerKernels{penaltyBytes, 1.3, 2.5e-5, 0}
	count           = samplerKernels{countBytes, 1.8, 5.3e-5, 2.6e-10}
	ratio           = samplerKernels{ratioBytes, 1.2, 7.9e-6, 4.7e-10}
)

// kernels that the settings ask for.
func (s Sampling) kernels() []samplerKernels {
	asked := []samplerKernels{taken}
	if s.RepetitionPenalty != 1 {
		asked = append(asked, penalized)
	}
	if s.Temperature == 0 {
		return asked
	}
	asked = append(asked, drawn)
	if s.MinP > 0 {
		asked = append(asked, ratio)
	}
	switch {
	case s.TopP < 1 && s.TopK > 0:
		asked = append(asked, mass, countBesideMass)
	case s.TopP < 1:
		asked = append(asked, mass)
	case s.TopK > 0:
		asked = append(asked, count)
	}
	return asked
}

// time of the kernels: bytes of a logit that take as long at the datasheet's bandwidth, and the
// seconds of a step and of each logit of the vocabulary whatever the batch.
func (s Sampling) time() (bytes, launchS, logitS float64) {
	for _, k := range s.kernels() {
		bytes += k.logitBytes * k.slowdown
		launchS += k.launchS
		logitS += k.logitS
	}
	return bytes, launchS, logitS
}
