package pinn

import (
	"math"
	"strings"
	"testing"
)

func TestModelsAndGPUsGoByEveryName(t *testing.T) {
	table, specs, network := goldenTable(t), goldenSpecs(t), goldenNetwork(t)
	for _, name := range []string{
		"meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B", "meta-llama/llama-3.1-8b",
	} {
		for _, gpu := range []string{"H100-SXM", "H100", "h100_sxm"} {
			want := map[string]string{"model": name, "gpu": gpu, "tensor_parallel_size": "2"}
			row, err := table.Find(want)
			if err != nil {
				t.Fatal(err)
			}
			deployment, err := specs.Deploy(name, gpu, Serving{TensorParallelSize: 2})
			if err != nil {
				t.Fatal(err)
			}
			own, err := network.Row(deployment)
			if err != nil {
				t.Fatal(err)
			}
			for i, beta := range row.Beta {
				if math.Abs(own.Beta[i]-beta) > 1e-9*beta {
					t.Errorf("%s: %s is %v, in the table %v", name, stepFeatures[i].Name, own.Beta[i], beta)
				}
			}
		}
	}
}

// A chat model has the shapes of its base and samples otherwise.
func TestAnAliasSamplesInItsOwnWay(t *testing.T) {
	specs := goldenSpecs(t)
	base, err := specs.Model("Llama-3.1-8B")
	if err != nil {
		t.Fatal(err)
	}
	specs.Models[0].Aliases = map[string]Sampling{"some/Chat": {TopP: 0.5, RepetitionPenalty: 1}}
	chat, err := specs.Model("chat")
	if err != nil {
		t.Fatal(err)
	}
	if chat.Sampling.TopP != 0.5 || chat.Name != specs.Models[0].Name || base.Sampling.TopP == 0.5 {
		t.Errorf("%+v", chat.Sampling)
	}
}

func TestUnknownNamesAreToldTheNearest(t *testing.T) {
	table, specs := goldenTable(t), goldenSpecs(t)
	_, gpuInTable := table.Find(map[string]string{"gpu": "H900"})
	_, gpuInSpecs := specs.Deploy("Llama-3.1-8B", "H900", Serving{})
	_, model := specs.Deploy("Qwen3-30B", "H100", Serving{})
	for want, err := range map[string]error{
		"have H100-SXM": gpuInTable, "H100-SXM, ": gpuInSpecs, "among Qwen/Qwen3-30B-A3B": model,
	} {
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("expected %q in few words, got %v", want, err)
		}
	}
}

func TestWhatNoRowHasIsRefusedByItsName(t *testing.T) {
	for want, asked := range map[string]map[string]string{
		`no "tensor_parallel": they have tensor_parallel_size`: {"tensor_parallel": "2"},
		"gpu is empty: the rows have":                          {"gpu": "", "tensor_parallel_size": "2"},
		"name values that exactly one has":                     {"gpu": "H100"},
	} {
		if _, err := goldenTable(t).Find(asked); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got %v", want, err)
		}
	}
}
