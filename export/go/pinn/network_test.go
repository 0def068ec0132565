package pinn

import (
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"testing"
)

type networkCase struct {
	Configuration struct {
		Model string `json:"model"`
		GPU   string `json:"gpu"`
		Serving
	} `json:"configuration"`
	Descriptors map[string]float64 `json:"descriptors"`
	Rates       map[string]float64 `json:"rates"`
	Costs       map[string]float64 `json:"costs"`
	Beta        []float64          `json:"beta"`
	Alpha       []float64          `json:"alpha"`
}

func (c *networkCase) deploy(t testing.TB, specs *Specs) *Deployment {
	t.Helper()
	s := c.Configuration
	d, err := specs.Deploy(s.Model, s.GPU, s.Serving)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func goldenSpecs(t testing.TB) *Specs {
	t.Helper()
	file, err := os.Open(goldenPath("specs.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	specs, err := ReadSpecs(file)
	if err != nil {
		t.Fatal(err)
	}
	return specs
}

// checkpointPath is the repository's checkpoint, or that which PINN_GOLDEN_CHECKPOINT names.
func checkpointPath() string {
	if path := os.Getenv("PINN_GOLDEN_CHECKPOINT"); path != "" {
		return path
	}
	return "../../../checkpoints/pinn.safetensors"
}

// checkFresh stops where the golden vectors were made from another checkpoint.
func checkFresh(t testing.TB) {
	t.Helper()
	raw, err := os.ReadFile(checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%x", sha256.Sum256(raw)), readManifest(t).Checkpoint; got != want {
		t.Fatalf("the golden vectors were made from the checkpoint %.12s, %s is %.12s: "+
			"run 'make goldens'", want, checkpointPath(), got)
	}
}

func goldenNetwork(t testing.TB) *Network {
	t.Helper()
	network, err := LoadNetwork(checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	return network
}

func TestEmbeddingAndCostsEqualPython(t *testing.T) {
	specs := goldenSpecs(t)
	for i, c := range goldenLines[networkCase](t, "network.json.gz") {
		d := c.deploy(t, specs)
		embedding, costs, got := d.Embed(), d.Costs(), map[string]float64{}
		for _, cost := range costNames {
			got[cost.name] = *cost.field(&costs)
		}
		where := fmt.Sprintf("case %d %+v", i, c.Configuration)
		sameValues(t, where, embedding.Descriptors, c.Descriptors)
		sameValues(t, where, embedding.Rates, c.Rates)
		sameValues(t, where, got, c.Costs)
	}
}

// Rows that Go makes know the GPU's cache as those of tables do.
func TestTheGPUsCacheEqualsPython(t *testing.T) {
	table, err := LoadTable(goldenPath("table.json"))
	if err != nil {
		t.Fatal(err)
	}
	specs, known := goldenSpecs(t), 0
	for _, row := range table.Rows {
		if _, err := specs.Model(row.Config["model"]); err != nil {
			continue // recurrent and sparse mixers: tables carry them, specs do not
		}
		known++
		s := Serving{TensorParallelSize: 1, KVCacheDtype: row.Config["kv_cache_dtype"]}
		d, err := specs.Deploy(row.Config["model"], row.Config["gpu"], s)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.gpuCacheTokens(); got != row.GPUCacheTokens || got < 1000 {
			t.Errorf("%s on %s: %v tokens, Python %v", row.Config["model"], row.Config["gpu"], got,
				row.GPUCacheTokens)
		}
	}
	if 10*known < 8*len(table.Rows) {
		t.Errorf("only %d of %d rows are of models in the specs", known, len(table.Rows))
	}
}

func sameValues(t *testing.T, where string, got, want map[string]float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, Python %d", where, len(got), len(want))
	}
	for name, value := range want {
		if math.Abs(got[name]-value) > 1e-12*max(math.Abs(value), 1e-12) {
			t.Errorf("%s, %s: %v, Python %v", where, name, got[name], value)
		}
	}
}

func TestNoMoreThanAllWeightsAreOffloaded(t *testing.T) {
	specs := goldenSpecs(t)
	for i, c := range goldenLines[networkCase](t, "network.json.gz") {
		offload := func(gib float64) float64 {
			c.Configuration.CPUOffloadGB = gib
			costs := c.deploy(t, specs).Costs()
			return costs.Offload
		}
		some, all, more := offload(0.01), offload(1e4), offload(1e6)
		if !(0 < some && some < all && all == more) {
			t.Errorf("case %d %+v: %v, %v, %v s", i, c.Configuration, some, all, more)
		}
	}
}

func TestForwardPassEqualsPython(t *testing.T) {
	checkFresh(t)
	specs, network, worst := goldenSpecs(t), goldenNetwork(t), 0.0
	cases := goldenLines[networkCase](t, "network.json.gz")
	for i, c := range cases {
		row, err := network.Row(c.deploy(t, specs))
		if err != nil {
			t.Fatal(err)
		}
		for j, want := range append(c.Beta, c.Alpha...) {
			got := append(row.Beta, row.Alpha...)[j]
			if want == 0 && got == 0 {
				continue
			}
			worst = max(worst, math.Abs(got/want-1))
			if !(math.Abs(got/want-1) <= 1e-6) {
				t.Errorf("case %d, coefficient %d: %v, Python %v", i, j, got, want)
			}
		}
	}
	t.Logf("%d deployments, largest relative difference %.1e", len(cases), worst)
}
