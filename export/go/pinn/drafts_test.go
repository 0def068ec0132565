package pinn

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"os"
	"reflect"
	"strings"
	"testing"
)

func speculatingTree(t testing.TB) map[string]any {
	t.Helper()
	raw, err := os.ReadFile(goldenPath("speculating.json"))
	if err != nil {
		t.Fatalf("%v: write it with 'make goldens'", err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

func speculatingTable(t testing.TB) *Table {
	t.Helper()
	table, err := ReadTableJSON(bytes.NewReader(encoded(t, speculatingTree(t))))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestDraftsSayWhyTheyAreRefused(t *testing.T) {
	for want, change := range map[string]func(row map[string]any){
		"row 1: drafted tokens and branches": func(row map[string]any) { row["draft.tokens"] = 1.5 },
		"passes 0 to 64":                     func(row map[string]any) { row["draft.passes"] = 1e9 },
		"branches must be 1 to 64":           func(row map[string]any) { row["draft.branches"] = nil },
		"draft.tokens: expected a number":    func(row map[string]any) { row["draft.tokens"] = "many" },
		`no draft "leaves"`:                  func(row map[string]any) { row["draft.leaves"] = 1 },
		"draft_acceptance must be rates":     func(row map[string]any) { row["draft_acceptance"] = "often" },
		"rates from 0 to 1":                  func(row map[string]any) { row["draft_acceptance"] = "0.9,1.5" },
		"rates of acceptance":                func(row map[string]any) { delete(row, "draft_acceptance") },
		"missing: draft_cost.layers":         func(row map[string]any) { delete(row, "draft_cost.layers") },
		"without draft_cost.layers":          func(row map[string]any) { row["draft_cost.layers"] = nil },
		"draft_cost.kv_read_s must be":       func(row map[string]any) { row["draft_cost.kv_read_s"] = -1 },
		"no draft columns say": func(row map[string]any) {
			for name := range row {
				if strings.HasPrefix(name, "draft") {
					delete(row, name)
				}
			}
		},
	} {
		tree := speculatingTree(t)
		change(tree["rows"].([]any)[0].(map[string]any))
		_, err := ReadTableJSON(bytes.NewReader(encoded(t, tree)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}

// What a table says, a deployment of the same flags has.
func TestSpeculativeDeploymentsEqualPython(t *testing.T) {
	checkFresh(t)
	specs, network := goldenSpecs(t), goldenNetwork(t)
	for i, want := range speculatingTable(t).Rows {
		deployment, err := specs.Deploy(want.Config["model"], want.Config["gpu"], servingOf(t, &want))
		if err != nil {
			t.Fatal(err)
		}
		got, err := network.Row(deployment)
		if err != nil {
			t.Fatal(err)
		}
		a, b := *got.Drafts, *want.Drafts
		for _, c := range costNames {
			plain := near(*c.field(&got.Costs), *c.field(&want.Costs), 1e-12)
			if draft := near(*c.field(&a.Costs), *c.field(&b.Costs), 1e-12); !plain || !draft {
				t.Errorf("row %d: cost %s of the model or its draft differs", i, c.name)
			}
		}
		a.Costs, b.Costs = Costs{}, Costs{}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("row %d: %+v, Python %+v", i, a, b)
		}
	}
}

// servingOf reads the flags of a table's row.
func servingOf(t *testing.T, row *Row) Serving {
	flags := map[string]any{}
	for name, text := range row.Config {
		switch {
		case strings.HasPrefix(name, "enable_prefix") || strings.HasPrefix(name, "max_"):
		case name == "speculative_config" || json.Unmarshal([]byte(text), new(float64)) != nil &&
			text != "true" && text != "false":
			flags[name] = text
		default:
			flags[name] = json.RawMessage(text)
		}
	}
	var serving Serving
	if err := json.Unmarshal(encoded(t, flags), &serving); err != nil {
		t.Fatal(err)
	}
	return serving
}

func TestFlagsOfDraftingSayWhyTheyAreRefused(t *testing.T) {
	specs := goldenSpecs(t)
	for want, s := range map[string]Serving{
		"JSON object":                          {SpeculativeConfig: "eagle"},
		`unknown "tokens"`:                     {SpeculativeConfig: `{"tokens": 2}`},
		"needs a method or a model":            {SpeculativeConfig: `{"num_speculative_tokens": 2}`},
		`"medusa" is not modelled`:             {SpeculativeConfig: `{"method": "medusa"}`},
		"must be a whole number":               {SpeculativeConfig: `{"method": "eagle"}`},
		"must be 1 to 64, got 65":              {SpeculativeConfig: `{"method": "mtp", "num_speculative_tokens": 65}`},
		`no model "somewhere/draft"`:           {SpeculativeConfig: `{"model": "somewhere/draft", "num_speculative_tokens": 2}`},
		"with pipeline stages":                 {SpeculativeConfig: `{"method": "mtp"}`, PipelineParallelSize: 2},
		"acceptance must be rates from 0 to 1": {SpeculativeConfig: `{"method": "mtp"}`, SpeculativeAcceptance: "often"},
		"2 positions and 3 tokens":             {SpeculativeConfig: `{"method": "mtp", "num_speculative_tokens": 3}`, SpeculativeAcceptance: "0.9,0.8"},
		`decoding_type "Medusa"`:               {Engine: "trtllm", SpeculativeConfig: `{"decoding_type": "Medusa"}`},
		"by the architecture":                  {Engine: "sglang", SpeculativeConfig: "EAGLE"},
		`algorithm "LOOKAHEAD"`:                {Engine: "sglang", SpeculativeConfig: "LOOKAHEAD"},
		"does not fit 2 steps of 2 br":         {Engine: "sglang", SpeculativeConfig: "NEXTN", SpeculativeNumSteps: 2, SpeculativeEagleTopk: 2, SpeculativeNumDraftTokens: 9},
	} {
		_, err := specs.Deploy("meta-llama/Llama-3.1-8B", "H100", s)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}

// Drafting is never free, and drafting more takes no less.
func TestDraftedTokensTakeTime(t *testing.T) {
	table, rng := speculatingTable(t), rand.New(rand.NewSource(3))
	for i := range table.Rows {
		plain, more := table.Rows[i], table.Rows[i]
		plain.Drafts, plain.Config = nil, nil
		drafts := *more.Drafts
		drafts.Tokens++
		drafts.Passes += min(drafts.Passes, 1)
		more.Drafts = &drafts
		models := []*Model{
			goldenModel(t, &plain), goldenModel(t, &table.Rows[i]).Clone(), goldenModel(t, &more),
		}
		for range 50 {
			batch := []*Request{}
			for range 1 + rng.Intn(100) {
				batch = append(batch, &Request{rng.Int63n(4000), 1 + rng.Int63n(300), rng.Int63n(2000)})
			}
			last := int64(0)
			for j, model := range models {
				us := model.StepTime(batch)
				if us < last {
					t.Fatalf("row %d, model %d: %d us after %d us", i, j, us, last)
				}
				last = us
			}
		}
		batch := benchBatch()
		if n := testing.AllocsPerRun(5, func() { models[1].StepTime(batch) }); n != 0 {
			t.Errorf("row %d: %v allocations", i, n)
		}
		if got := models[1].StepTime(nil); got != 1 {
			t.Errorf("row %d: an empty step takes %d us", i, got)
		}
	}
}
