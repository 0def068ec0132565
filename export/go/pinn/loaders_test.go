package pinn

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
)

// goldenRow is a JSON table with the first golden row alone, as a tree that tests change.
func goldenTree(t testing.TB) map[string]any {
	t.Helper()
	raw, err := os.ReadFile(goldenPath("table.json"))
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	tree["rows"] = tree["rows"].([]any)[:2]
	return tree
}

func encoded(t testing.TB, tree any) []byte {
	t.Helper()
	raw, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestTablesSayWhyTheyAreRefused(t *testing.T) {
	const layer = "beta.layer [s/layer]"
	for want, change := range map[string]func(tree, row map[string]any){
		`version is "2", expected 1`:                   func(tree, _ map[string]any) { tree["version"] = 2 },
		`version is "0", expected 1`:                   func(tree, _ map[string]any) { tree["version"] = 0 },
		`version is "", expected 1`:                    func(tree, _ map[string]any) { delete(tree, "version") },
		`format is "x"`:                                func(tree, _ map[string]any) { tree["format"] = "x" },
		"no rows":                                      func(tree, _ map[string]any) { tree["rows"] = []any{} },
		"row 1: columns are missing":                   func(tree, _ map[string]any) { tree["rows"] = []any{nil} },
		"row 2: " + layer + " must be fi":              func(_, row map[string]any) { row[layer] = -1 },
		"row 2: " + layer + " must be a":               func(_, row map[string]any) { row[layer] = "much" },
		"got NaN":                                      func(_, row map[string]any) { row[layer] = "NaN" },
		"must be a number, got :":                      func(_, row map[string]any) { row[layer] = nil },
		"columns are missing: " + layer:                func(_, row map[string]any) { delete(row, layer) },
		`"beta.new [s]" is unknown`:                    func(_, row map[string]any) { row["beta.new [s]"] = 1 },
		`"cost.new_s" is unknown`:                      func(_, row map[string]any) { row["cost.new_s"] = 1 },
		`"gamma.new" is unknown`:                       func(_, row map[string]any) { row["gamma.new"] = 1 },
		"cost.expert_share must be at":                 func(_, row map[string]any) { row["cost.expert_share"] = 1.5 },
		"window_tokens must be":                        func(_, row map[string]any) { row["window_tokens"] = 1.5 },
		"gpu_cache_tokens must be f":                   func(_, row map[string]any) { row["gpu_cache_tokens"] = -1 },
		"gpu_cache_tokens must be a":                   func(_, row map[string]any) { row["gpu_cache_tokens"] = "x" },
		"prefix_caching must be true":                  func(_, row map[string]any) { row["enable_prefix_caching"] = 1 },
		`got {"a":[1]}`:                                func(_, row map[string]any) { row[layer] = map[string]any{"a": []int{1}} },
		`"format" must not be of the JSON type number`: func(tree, _ map[string]any) { tree["format"] = 7 },
		`"rows" must not be of the JSON type string`:   func(tree, _ map[string]any) { tree["rows"] = "none" },
	} {
		tree := goldenTree(t)
		change(tree, tree["rows"].([]any)[1].(map[string]any))
		_, err := ReadTableJSON(bytes.NewReader(encoded(t, tree)))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "map[") {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
	if _, err := ReadTableJSON(strings.NewReader("[1]")); err == nil || strings.Contains(err.Error(), "Go") {
		t.Errorf("got %v", err)
	}
}

func TestCSVTablesAreCheckedToo(t *testing.T) {
	raw, err := os.ReadFile(goldenPath("table.csv"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitN(string(raw), "\n", 3)
	for want, text := range map[string]string{
		`version is "9"`:      lines[0] + "\n" + strings.Replace(lines[1], ",1,", ",9,", 1),
		"no rows":             lines[0] + "\n",
		"has no rows":         "",
		`format is ""`:        "a,b\n1,2\n",
		"twice":               lines[0] + ",gpu\n" + lines[1] + ",x\n",
		"columns are missing": strings.Replace(lines[0], "beta.layer [s/layer]", "other", 1) + "\n" + lines[1],
		"malformed CSV":       lines[0] + "\n" + lines[1] + ",1\n",
	} {
		if _, err := ReadTableCSV(strings.NewReader(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}

func TestBoundsAreKept(t *testing.T) {
	tree := goldenTree(t)
	row := tree["rows"].([]any)[0].(map[string]any)
	row["beta_low.layer [s/layer]"], row["beta_high.layer [s/layer]"] = 0.25, nil
	table, err := ReadTableJSON(bytes.NewReader(encoded(t, tree)))
	if err != nil {
		t.Fatal(err)
	}
	got := table.Rows[0]
	if got.BetaLow.Layer != 0.25 || !math.IsNaN(got.BetaHigh.Layer) || !math.IsNaN(got.BetaLow.Step) {
		t.Errorf("low %v, high %v", got.BetaLow.Layer, got.BetaHigh.Layer)
	}
}
