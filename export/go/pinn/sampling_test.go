package pinn

import (
	"strings"
	"testing"
)

func TestOverridesOfSampling(t *testing.T) {
	model := Sampling{Temperature: 0.7, TopK: 20, TopP: 0.8, RepetitionPenalty: 1.05}
	for override, want := range map[string]Sampling{
		"":                       model,
		`{}`:                     model,
		`{"temperature": 0}`:     {0, 20, 0.8, 0, 1.05},
		`{"top_p": null}`:        {0.7, 20, 1, 0, 1.05},
		`{"top_k": null}`:        {0.7, 0, 0.8, 0, 1.05},
		`{"top_k": 40.0}`:        {0.7, 40, 0.8, 0, 1.05},
		`{"max_new_tokens": 99}`: model,
	} {
		if got, err := model.overridden(override); err != nil || got != want {
			t.Errorf("%s: expected %+v, got %+v, %v", override, want, got, err)
		}
	}
	for override, want := range map[string]string{
		`null`: "must be a JSON object", `[1]`: "must be a JSON object", ` `: "must be a JSON object",
		`{"top_p": 0.9} x`: "must be a JSON object", `{"top_p": "0.9"}`: "must be a JSON object",
		`{"temperature": 1e999}`: "must be a JSON object", `{"beams": 4}`: "unknown",
		`{"TOP_P": 0.9}`: "unknown", `{"top_k": 20.5}`: "whole number", `{"top_p": 0}`: "top_p",
		`{"temperature": -1}`: "temperature", `{"min_p": 2}`: "min_p",
		`{"repetition_penalty": 0}`: "repetition_penalty", `{"top_k": -2}`: "top_k",
	} {
		if _, err := model.overridden(override); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: expected %q, got %v", override, want, err)
		}
	}
}

func TestLogitBytesByHand(t *testing.T) {
	for sampling, want := range map[Sampling]float64{
		{Temperature: 0, TopP: 0.9, TopK: 9, MinP: 0.1, RepetitionPenalty: 1}: 10,
		{Temperature: 0, TopP: 1, RepetitionPenalty: 1.1}:                     10 + 77,
		DefaultSampling(): 42,
		{Temperature: 1, TopP: 1, TopK: 20, RepetitionPenalty: 1}:        42 + 34,
		{Temperature: 1, TopP: 0.9, RepetitionPenalty: 1}:                252,
		{Temperature: 1, TopP: 1, MinP: 0.1, RepetitionPenalty: 1}:       42 + 26,
		{Temperature: 0.7, TopP: 0.8, TopK: 20, RepetitionPenalty: 1.05}: 252 + 14 + 77,
	} {
		got := 0.0
		for _, kernels := range sampling.kernels() {
			got += kernels.logitBytes
		}
		if got != want {
			t.Errorf("%+v: expected %v bytes, got %v", sampling, want, got)
		}
	}
}
