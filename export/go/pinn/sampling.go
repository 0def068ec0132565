package pinn

import (
	"encoding/json"
	"fmt"
	"math"
)

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
