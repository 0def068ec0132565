package pinn

import (
	"strings"
	"testing"
)

func TestModelsAndGPUsGoByEveryName(t *testing.T) {
	table := goldenTable(t)
	for _, name := range []string{
		"meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B", "meta-llama/llama-3.1-8b",
	} {
		for _, gpu := range []string{"H100-SXM", "H100", "h100_sxm"} {
			row, err := table.Find(Key{Model: name, GPU: gpu, TensorParallelSize: 2})
			if err != nil {
				t.Fatal(err)
			}
			if row.Config["model"] != "meta-llama/Meta-Llama-3.1-8B" || row.Config["gpu"] != "H100-SXM" {
				t.Errorf("%s on %s: %s on %s", name, gpu, row.Config["model"], row.Config["gpu"])
			}
		}
	}
}

func TestFieldsOfAKeyNarrowTheRows(t *testing.T) {
	table, model := goldenTable(t), "Qwen/Qwen3-30B-A3B"
	for want, key := range map[string]Key{
		"rows fit, which differ in data_par": {Model: model, GPU: "H200", TensorParallelSize: 4},
		`no row has engine "sglang"`:         {Model: model, GPU: "H200", TensorParallelSize: 4, Engine: "sglang"},
		`precision "int4", they have fp8`:    {Model: model, GPU: "L40S", TensorParallelSize: 4, Precision: "int4"},
		`pipeline_parallel_size "4"`:         {Model: model, GPU: "L40S", TensorParallelSize: 4, PipelineParallelSize: 4},
		`kv_cache_dtype "fp8"`:               {Model: model, GPU: "H100", TensorParallelSize: 4, KVCacheDtype: "fp8"},
	} {
		if _, err := table.Find(key); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: expected %q, got %v", key, want, err)
		}
	}
	row, err := table.Find(Key{Model: model, GPU: "H200", TensorParallelSize: 4, DataParallelSize: 4})
	if err != nil || row.Config["data_parallel_size"] != "4" {
		t.Errorf("%v", err)
	}
}

func TestWhatNoRowHasIsRefusedByItsName(t *testing.T) {
	for want, key := range map[string]Key{
		"Key has no model": {GPU: "H100", TensorParallelSize: 2},
		"Key has no gpu":   {Model: "Llama-3.1-8B", TensorParallelSize: 2},
		"no tensor_parallel_size: set it, the rows have 1": {Model: "Llama-3.1-8B", GPU: "H100"},
		`no row has gpu "H900", they have H100`:            {Model: "Llama-3.1-8B", GPU: "H900", TensorParallelSize: 2},
		`no row has model "x"`:                             {Model: "x", GPU: "H100", TensorParallelSize: 2},
	} {
		_, err := goldenTable(t).Find(key)
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("expected %q in few words, got %v", want, err)
		}
	}
}
