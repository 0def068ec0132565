package pinn

import (
	"fmt"
	"testing"
)

// sink keeps the compiler from leaving a benchmark's work out.
var sink int64

// benchBatch is a mixed step of 128 requests: 126 decodes beside two prefill chunks.
func benchBatch() []Request {
	batch := make([]Request, 128)
	for i := range batch {
		batch[i] = Request{ProgressIndex: 500 + int64(i), NumNewTokens: 1, InputLen: 400}
	}
	batch[7] = Request{ProgressIndex: 512, NumNewTokens: 256, InputLen: 1024}
	batch[90] = Request{ProgressIndex: 0, NumNewTokens: 512, InputLen: 512}
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
			row, err := table.Find(Key{Model: kind.model, GPU: "H100", TensorParallelSize: 2})
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

// BenchmarkStepSeconds times steps whose requests are summed up already: few tokens and many.
func BenchmarkStepSeconds(b *testing.B) {
	row, err := goldenTable(b).Find(Key{Model: "Qwen/Qwen3-30B-A3B", GPU: "H100", TensorParallelSize: 2})
	if err != nil {
		b.Fatal(err)
	}
	model := goldenModel(b, row)
	for _, prompt := range []int64{512, 5000, 50000} {
		b.Run(fmt.Sprint(prompt), func(b *testing.B) {
			sums := sumsOf(model, append(benchBatch(), Request{0, prompt, prompt}))
			for range b.N {
				sink += int64(model.StepSeconds(sums))
			}
		})
	}
}
