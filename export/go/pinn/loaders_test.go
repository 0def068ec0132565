package pinn

import (
	"bytes"
	"encoding/json"
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
		"newer than 1":                  func(tree, _ map[string]any) { tree["version"] = 2 },
		"older than 1":                  func(tree, _ map[string]any) { tree["version"] = 0 },
		`format is "x"`:                 func(tree, _ map[string]any) { tree["format"] = "x" },
		"no rows":                       func(tree, _ map[string]any) { tree["rows"] = []any{} },
		"row 2: beta.layer must be":     func(_, row map[string]any) { row[layer] = -1 },
		"row 2: " + layer:               func(_, row map[string]any) { row[layer] = "much" },
		"row 2: beta.layer":             func(_, row map[string]any) { row[layer] = "NaN" },
		"columns are missing: " + layer: func(_, row map[string]any) { delete(row, layer) },
		`no feature "new [s]"`:          func(_, row map[string]any) { row["beta.new [s]"] = 1 },
		`no cost "new_s"`:               func(_, row map[string]any) { row["cost.new_s"] = 1 },
		`no kind of column "gamma"`:     func(_, row map[string]any) { row["gamma.new"] = 1 },
		"window_tokens must be":         func(_, row map[string]any) { row["window_tokens"] = 1.5 },
		"gpu_cache_tokens must be":      func(_, row map[string]any) { row["gpu_cache_tokens"] = -1 },
		"prefix_caching must be true":   func(_, row map[string]any) { row["enable_prefix_caching"] = 1 },
	} {
		tree := goldenTree(t)
		change(tree, tree["rows"].([]any)[1].(map[string]any))
		rows := tree["rows"].([]any)
		if len(rows) > 0 {
			tree["rows"] = rows
		}
		_, err := ReadTableJSON(bytes.NewReader(encoded(t, tree)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}

func TestCSVTablesAreCheckedToo(t *testing.T) {
	raw, err := os.ReadFile(goldenPath("table.csv"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitN(string(raw), "\n", 3)
	for want, text := range map[string]string{
		"newer than 1":        lines[0] + "\n" + strings.Replace(lines[1], ",1,", ",9,", 1),
		"no rows":             lines[0] + "\n",
		"no line of column":   "",
		"no columns format":   "a,b\n1,2\n",
		"columns are missing": strings.Replace(lines[0], "beta.layer [s/layer]", "other", 1) + "\n",
		"row 1":               lines[0] + "\n" + lines[1] + ",1\n",
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
	if got.BetaLow[fLayer] != 0.25 || got.BetaHigh[fLayer] == got.BetaHigh[fLayer] {
		t.Errorf("low %v, high %v", got.BetaLow[fLayer], got.BetaHigh[fLayer])
	}
	if table.Rows[1].BetaLow != nil {
		t.Error("bounds where the file has none")
	}
}

func TestFindWantsExactlyOneRow(t *testing.T) {
	table := goldenTable(t)
	for _, want := range []map[string]string{{}, {"model": "none"}} {
		if _, err := table.Find(want); err == nil {
			t.Errorf("%v was found", want)
		}
	}
}

func checkpointBytes(t testing.TB) []byte {
	t.Helper()
	raw, err := os.ReadFile(checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestCheckpointsSayWhyTheyAreRefused(t *testing.T) {
	raw := checkpointBytes(t)
	replaced := func(old, text string) []byte {
		if len(old) != len(text) || !bytes.Contains(raw, []byte(old)) {
			t.Fatalf("%q and %q", old, text)
		}
		return bytes.Replace(raw, []byte(old), []byte(text), 1)
	}
	for want, data := range map[string][]byte{
		"no safetensors file": nil,
		"cut off":             raw[:200],
		"beyond the end":      raw[:len(raw)-8],
		"newer than 2":        replaced(`format_version\": 2`, `format_version\": 3`),
		"other step features": replaced(`step [s]`, `stem [s]`),
		"other descriptors":   replaced(`\"layers\"`, `\"lagers\"`),
		"no checkpoint":       replaced(`{"pinn":`, `{"pint":`),
	} {
		if _, err := ReadNetwork(bytes.NewReader(data)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}

func TestNetworksWantEveryDescriptor(t *testing.T) {
	network := goldenNetwork(t)
	deployment, err := goldenSpecs(t).Deploy("Qwen/Qwen3-30B-A3B", "H100-SXM", Serving{})
	if err != nil {
		t.Fatal(err)
	}
	missing, more := deployment.Embed(), deployment.Embed()
	delete(missing.Descriptors, "heads")
	more.Rates["other"] = 1
	for want, embedding := range map[string]Embedding{
		"descriptor heads is missing": missing, "4 rates given": more,
	} {
		if _, _, err := network.Coefficients(embedding); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}

func TestDeploymentsThatCannotRunAreRefused(t *testing.T) {
	specs := goldenSpecs(t)
	for want, deploy := range map[string]func() (*Deployment, error){
		"no model": func() (*Deployment, error) { return specs.Deploy("x", "L4", Serving{}) },
		"no GPU": func() (*Deployment, error) {
			return specs.Deploy("Qwen/Qwen3-30B-A3B", "x", Serving{})
		},
		"does not divide": func() (*Deployment, error) {
			return specs.Deploy("Qwen/Qwen3-30B-A3B", "L4", Serving{TensorParallelSize: 3})
		},
		"exceeds the 48": func() (*Deployment, error) {
			return specs.Deploy("Qwen/Qwen3-30B-A3B", "L4", Serving{PipelineParallelSize: 49})
		},
		"kv_cache_dtype": func() (*Deployment, error) {
			return specs.Deploy("Qwen/Qwen3-30B-A3B", "L4", Serving{KVCacheDtype: "x"})
		},
		"generation_config": func() (*Deployment, error) {
			return specs.Deploy("Qwen/Qwen3-30B-A3B", "L4", Serving{GenerationConfig: "x"})
		},
		"unknown setting": func() (*Deployment, error) {
			return specs.Deploy("Qwen/Qwen3-30B-A3B", "L4",
				Serving{OverrideGenerationConfig: `{"beams": 4}`})
		},
		"top_p cannot": func() (*Deployment, error) {
			return specs.Deploy("Qwen/Qwen3-30B-A3B", "L4",
				Serving{OverrideGenerationConfig: `{"top_p": 0}`})
		},
	} {
		if _, err := deploy(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}
