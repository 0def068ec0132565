package pinn

import (
	"math"
	"testing"
)

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

// blisFormula is BLIS's own step time, for comparison: eleven terms of sums over the batch, with
// what does not change worked out beforehand (Qwen3-30B-A3B on H100 at TP 2).
type blisFormula struct {
	beta                                          [11]float64
	prefillToken, prefillReach                    float64
	decodeToken, decodeContext                    float64
	weights, allReduce, layers, moeLayers, kvRead float64
}

func newBLISFormula() *blisFormula {
	return &blisFormula{
		beta:         [11]float64{0.152, 0, 1.363, 0.752, 32.1, 4.42, 126, 482, 0, 1.947, 0.752},
		prefillToken: 6.2e-3, prefillReach: 4e-7, decodeToken: 6.2e-3, decodeContext: 4e-7,
		weights: 9000, allReduce: 0.3, layers: 48, moeLayers: 0, kvRead: 7e-3,
	}
}

func (f *blisFormula) stepTime(batch []*Request) int64 {
	var prefillTokens, reach, decodes, context float64
	for _, r := range batch {
		if r.ProgressIndex < r.InputLen {
			t := float64(r.NumNewTokens)
			prefillTokens += t
			reach += t * (float64(r.InputLen) + t/2)
		} else {
			decodes++
			context += float64(r.ProgressIndex)
		}
	}
	tokens := prefillTokens + decodes
	x := [11]float64{
		f.prefillToken*prefillTokens + f.prefillReach*reach,
		f.decodeToken*decodes + f.decodeContext*context,
		f.weights, f.allReduce * tokens, f.layers, float64(len(batch)), 1, f.moeLayers,
		f.kvRead * prefillTokens, f.kvRead * (context + decodes), 0,
	}
	total := 0.0
	for i, b := range f.beta {
		total += b * x[i]
	}
	return max(int64(math.Trunc(total)), 1)
}

func BenchmarkBLISFormula128(b *testing.B) {
	formula, batch := newBLISFormula(), benchBatch()
	b.ReportAllocs()
	for range b.N {
		sink += formula.stepTime(batch)
	}
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
