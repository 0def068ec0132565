package pinn

import "testing"

// sink keeps the compiler from leaving a benchmark's work out.
var sink int64

// benchBatch is a mixed step of 128 requests: 126 decodes beside two prefill chunks.
func benchBatch() []*Request {
	batch := make([]*Request, 128)
	for i := range batch {
		batch[i] = &Request{ProgressIndex: 500 + int64(i), NumNewTokens: 1, InputLen: 400}
	}
	batch[7] = &Request{ProgressIndex: 512, NumNewTokens: 256, InputLen: 1024}
	batch[90] = &Request{ProgressIndex: 0, NumNewTokens: 512, InputLen: 512}
	return batch
}

func BenchmarkStepTime128(b *testing.B) {
	table := goldenTable(b)
	for _, kind := range []struct{ name, model string }{
		{"dense", "codellama/CodeLlama-34b-hf"},
		{"experts", "Qwen/Qwen3-30B-A3B"},
		{"window", "google/gemma-3-12b-it"},
	} {
		b.Run(kind.name, func(b *testing.B) {
			row, err := table.Find(map[string]string{
				"model": kind.model, "gpu": "H100-SXM", "tensor_parallel_size": "2",
			})
			if err != nil {
				b.Fatal(err)
			}
			model, batch := goldenModel(b, row), benchBatch()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				sink += model.StepTime(batch)
			}
		})
	}
}

func BenchmarkNetworkRow(b *testing.B) {
	specs, network := goldenSpecs(b), goldenNetwork(b)
	deployment, err := specs.Deploy("Qwen/Qwen3-30B-A3B", "H100-SXM", Serving{TensorParallelSize: 2})
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		if _, err := network.Row(deployment); err != nil {
			b.Fatal(err)
		}
	}
}
