package pinn

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"os"
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
		"row 1: draft.tokens must be":           func(row map[string]any) { row["draft.tokens"] = 1.5 },
		"draft.tokens must be 1 to":             func(row map[string]any) { row["draft.tokens"] = 0 },
		"draft.passes must be":                  func(row map[string]any) { row["draft.passes"] = 1e9 },
		"draft.branches must be 1":              func(row map[string]any) { row["draft.branches"] = nil },
		"number, got many":                      func(row map[string]any) { row["draft.tokens"] = "many" },
		`"draft.leaves" is unknown`:             func(row map[string]any) { row["draft.leaves"] = 1 },
		"acceptance must be rates":              func(row map[string]any) { row["draft_acceptance"] = "often" },
		"to 3 rates from 0 to 1, got [0.9 1.5]": func(row map[string]any) { row["draft_acceptance"] = "0.9,1.5" },
		"1 to 3 rates from":                     func(row map[string]any) { row["draft_acceptance"] = "1,1,1,1" },
		`rates with commas`:                     func(row map[string]any) { delete(row, "draft_acceptance") },
		"missing: draft_cost.layers":            func(row map[string]any) { delete(row, "draft_cost.layers") },
		"draft_cost.layers must be positive":    func(row map[string]any) { row["draft_cost.layers"] = nil },
		"draft_cost.kv_read_s must":             func(row map[string]any) { row["draft_cost.kv_read_s"] = -1 },
		"draft_cost.expert_share":               func(row map[string]any) { row["draft_cost.expert_share"] = 2 },
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
			goldenModel(t, &plain), goldenModel(t, &table.Rows[i]), goldenModel(t, &more),
		}
		for range 50 {
			batch := []Request{}
			for range 1 + rng.Intn(100) {
				batch = append(batch, Request{rng.Int63n(4000), 1 + rng.Int63n(300), rng.Int63n(2000)})
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
