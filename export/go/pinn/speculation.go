package pinn

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Methods of drafting.
const (
	ngram      = "ngram"
	draftModel = "draft_model"
	eagle      = "eagle"
	eagle3     = "eagle3"
	mtp        = "mtp"
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
	switch s.Engine {
	case "sglang":
		found, err = s.sglangSpeculation()
	case "trtllm":
		found, err = trtllmSpeculation(s.SpeculativeConfig)
	default:
		found, err = vllmSpeculation(s.SpeculativeConfig)
	}
	if err == nil && s.PipelineParallelSize > 1 {
		err = fmt.Errorf("speculative decoding is not modelled with pipeline stages: leave one out")
	}
	if err == nil && (found.tokens < 1 || found.tokens > mostDrafted) {
		err = fmt.Errorf("speculative tokens must be 1 to %d, got %d", mostDrafted, found.tokens)
	}
	return found, err
}

// vllmSpeculation reads vLLM's speculative_config.
func vllmSpeculation(config string) (speculation, error) {
	values, err := speculativeObject(config, vllmKeys)
	if err != nil {
		return speculation{}, err
	}
	draft, method := values.text("model"), values.text("method")
	if name := strings.ToLower(draft); method == "" {
		switch {
		case name == "":
			return speculation{}, fmt.Errorf("speculative_config needs a method or a model: add one")
		case strings.Trim(name, "[]") == ngram:
			method = ngram
		case strings.Contains(name, eagle3):
			method = eagle3
		case strings.Contains(name, eagle):
			method = eagle
		default:
			method = draftModel
		}
	}
	if strings.HasSuffix(method, "_mtp") {
		method = mtp
	}
	method = strings.Trim(method, "[]")
	if !slices.Contains([]string{ngram, draftModel, eagle, eagle3, mtp}, method) {
		return speculation{}, fmt.Errorf("speculative_config: method %q is not modelled", method)
	}
	if method == mtp || method == ngram {
		draft = ""
	}
	tokens, err := values.count("num_speculative_tokens", method == mtp)
	return chain(method, tokens, draft), err
}

// trtllmSpeculation reads TensorRT-LLM's speculative_config.
func trtllmSpeculation(config string) (speculation, error) {
	values, err := speculativeObject(config, trtllmKeys)
	if err != nil {
		return speculation{}, err
	}
	kind := values.text("decoding_type")
	method, known := trtllmMethods[strings.ToLower(kind)]
	if !known {
		return speculation{}, fmt.Errorf("speculative_config: decoding_type %q is not modelled", kind)
	}
	if method == mtp {
		tokens, err := values.count("num_nextn_predict_layers", true)
		return chain(mtp, tokens, ""), err
	}
	tokens, err := values.count("max_draft_len", false)
	return chain(method, tokens, values.text("speculative_model_dir")), err
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

func speculativeObject(config string, keys []string) (speculativeValues, error) {
	var values speculativeValues
	if err := json.Unmarshal([]byte(config), &values); err != nil || values == nil {
		return nil, fmt.Errorf("speculative_config must be a JSON object, got %q", config)
	}
	for key := range values {
		if !slices.Contains(keys, key) {
			return nil, fmt.Errorf("speculative_config: unknown %q: use %s", key,
				strings.Join(keys, ", "))
		}
	}
	return values, nil
}

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
	var rates []float64
	text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(s.SpeculativeAcceptance), "["), "]")
	for _, word := range strings.Split(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		rate, err := strconv.ParseFloat(word, 64)
		if err != nil || !(rate >= 0 && rate <= 1) {
			return nil, fmt.Errorf("speculative_acceptance must be a rate from 0 to 1, or one for each "+
				"position with commas between them, got %q", s.SpeculativeAcceptance)
		}
		rates = append(rates, rate)
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
