package pinn

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// speculation is what flags ask for, as Python's pinn.specs.speculation; the zero value drafts
// nothing.
type speculation struct {
	method                   string
	tokens, passes, branches int64
	positions                int64 // that can be accepted at most
	draft                    string
}

// readSpeculation reads the engine's own flags.
func (s Serving) readSpeculation() (found speculation, err error) {
	if s.SpeculativeConfig == "" || strings.EqualFold(s.SpeculativeConfig, "none") {
		return found, nil
	}
	if s.Engine == "sglang" {
		found, err = s.sglangSpeculation()
	} else {
		found, err = speculativeObject(s.SpeculativeConfig, s.Engine)
	}
	if err == nil && s.PipelineParallelSize > 1 {
		err = fmt.Errorf("speculative decoding is not modelled with pipeline stages: leave one out")
	}
	if err == nil && (found.tokens < 1 || found.tokens > mostDrafted) {
		err = fmt.Errorf("speculative tokens must be 1 to %d, got %d", mostDrafted, found.tokens)
	}
	return found, err
}

// speculativeObject reads vLLM's or TensorRT-LLM's speculative_config.
func speculativeObject(config, engine string) (speculation, error) {
	var values speculativeValues
	if err := json.Unmarshal([]byte(config), &values); err != nil || values == nil {
		return speculation{}, fmt.Errorf("speculative_config must be a JSON object, got %q", config)
	}
	known := speculativeWords[engine]
	for key := range values {
		if !slices.Contains(known.keys, key) {
			return speculation{}, fmt.Errorf("speculative_config: unknown %q: use %s", key,
				strings.Join(known.keys, ", "))
		}
	}
	draft, kind := values.text(known.draft), values.text(known.method)
	if engine != "vllm" {
		kind = strings.ToLower(kind)
	} else if kind = vllmMethod(kind, strings.ToLower(draft)); kind == "" {
		return speculation{}, fmt.Errorf("speculative_config needs a method or a model: add one")
	}
	method, modelled := known.methods[kind]
	if !modelled {
		return speculation{}, fmt.Errorf("speculative_config: %s %q is not modelled", known.method,
			values.text(known.method))
	}
	if method == mtp {
		tokens, err := values.count(known.mtpTokens, true)
		return chain(mtp, tokens, ""), err
	}
	if method == ngram {
		draft = ""
	}
	tokens, err := values.count(known.tokens, false)
	return chain(method, tokens, draft), err
}

// vllmMethod is what vLLM takes a method for, or a draft by its name.
func vllmMethod(method, draft string) string {
	switch {
	case strings.HasSuffix(method, "_mtp"):
		return mtp
	case method != "" || draft == "":
		return strings.Trim(method, "[]")
	case strings.Trim(draft, "[]") == ngram:
		return ngram
	case strings.Contains(draft, eagle3):
		return eagle3
	case strings.Contains(draft, eagle):
		return eagle
	}
	return draftModel
}

// sglangSpeculation reads SGLang's flags, whose draft tokens count the one that is known already.
func (s Serving) sglangSpeculation() (speculation, error) {
	method, known := sglangMethods[strings.ToUpper(s.SpeculativeConfig)]
	draft := s.SpeculativeDraftModelPath
	if method == eagle && draft == "" {
		method = mtp
	}
	steps, tokens := s.SpeculativeNumSteps, s.SpeculativeNumDraftTokens
	branches := max(s.SpeculativeEagleTopk, 1)
	switch {
	case !known:
		return speculation{}, fmt.Errorf("speculative_algorithm %q is not modelled",
			s.SpeculativeConfig)
	case method == ngram && tokens == 0:
		return chain(ngram, sglangNgramTokens-1, ""), nil // one of them is known
	case method == ngram:
		return chain(ngram, tokens-1, ""), nil
	case steps == 0:
		return speculation{}, fmt.Errorf("SGLang chooses speculative_num_steps by the architecture, " +
			"which a model here does not name: set it, with speculative_eagle_topk and " +
			"speculative_num_draft_tokens")
	case method == mtp:
		draft = ""
	}
	if tokens == 0 {
		tokens = steps + 1
	}
	if steps < 1 || steps > mostDrafted || branches > mostDrafted {
		return speculation{}, fmt.Errorf("speculative_num_steps and speculative_eagle_topk must be 1 "+
			"to %d, got %d and %d", mostDrafted, steps, branches)
	}
	most := 1 + branches
	if steps > 1 {
		most += (steps - 1) * branches * branches
	}
	if tokens < 2 || tokens > most {
		return speculation{}, fmt.Errorf("speculative_num_draft_tokens %d does not fit %d steps of "+
			"%d branches: use 2 to %d", tokens, steps, branches, most)
	}
	return speculation{method, tokens - 1, steps, branches, min(steps, tokens-1), draft}, nil
}

// chain drafts one token after the other: a pass for each, none for what looks text up.
func chain(method string, tokens int64, draft string) speculation {
	passes := tokens
	if method == ngram {
		passes = 0
	}
	return speculation{method, tokens, passes, 1, tokens, draft}
}

type speculativeValues map[string]any

// text of a key, empty where there is none.
func (v speculativeValues) text(key string) string {
	text, _ := v[key].(string)
	return text
}

// count of a key; 1 where there is none and that is its default.
func (v speculativeValues) count(key string, oneByDefault bool) (int64, error) {
	if v[key] == nil && oneByDefault {
		return 1, nil
	}
	number, ok := v[key].(float64)
	if !ok || number != math.Trunc(number) || math.Abs(number) > largest {
		return 0, fmt.Errorf("speculative_config: %s must be a whole number, got %v", key, v[key])
	}
	return int64(number), nil
}

// acceptance by position: what the flag says, else what Python assumes of the method.
func (s Serving) acceptance(asked speculation, assumed map[string]float64) ([]float64, error) {
	text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(s.SpeculativeAcceptance), "["), "]")
	rates, err := readRates("speculative_acceptance", text)
	if err != nil {
		return nil, err
	}
	if len(rates) == 0 {
		rate, known := assumed[asked.method]
		if !known {
			return nil, fmt.Errorf("the specs say no acceptance of %s: set SpeculativeAcceptance, or "+
				"export them again", asked.method)
		}
		rates = []float64{rate}
	}
	for one := len(rates) == 1; one && int64(len(rates)) < asked.positions; {
		rates = append(rates, rates[0])
	}
	if int64(len(rates)) < asked.positions {
		return nil, fmt.Errorf("speculative_acceptance %q has %d positions and %d tokens are drafted: "+
			"give as many, or one rate for all", text, len(rates), asked.positions)
	}
	return rates[:asked.positions], nil
}
