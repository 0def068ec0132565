package blis

import (
	"math"
	"syscall"
	"testing"

	"github.com/inference-sim/inference-sim/sim"
)

// pairedSteps are asked of either model in turn, so that whatever else the machine does falls on
// both.
const pairedSteps = 500

// BenchmarkStepTime128 asks BLIS's formula and the adapter for a step of 128 requests and reports
// the processor time of each; of decodes within a window, beyond it and on both sides, and of shared
// prompts in steps of which every other has another request.
func BenchmarkStepTime128(b *testing.B) {
	const none = math.MaxInt
	for _, kind := range []struct {
		name, model string
		shared      bool
		every       int // of so many decodes, one is a thousand tokens longer
	}{
		{"dense", "codellama/CodeLlama-34b-hf", false, none},
		{"experts", "Qwen/Qwen3-30B-A3B", false, none},
		{"window", "google/gemma-3-12b-it", false, none},
		{"beyond", "google/gemma-3-12b-it", false, 1},
		{"around", "google/gemma-3-12b-it", false, 2},
		{"shared", "codellama/CodeLlama-34b-hf", true, none},
		{"shared-window", "google/gemma-3-12b-it", true, none},
		{"shared-beyond", "google/gemma-3-12b-it", true, 1},
		{"shared-around", "google/gemma-3-12b-it", true, 2},
	} {
		b.Run(kind.name, func(b *testing.B) {
			models := [2]sim.LatencyModel{bundled(), adapted(b, goldenModel(b, kind.model))}
			batch, others := benchBatch(), []*sim.Request{}
			if kind.shared {
				others = sharedPrompts(batch)
			}
			for i, r := range append(append([]*sim.Request{}, batch...), others...) {
				if decodes(r) && (i+1)%kind.every == 0 {
					r.ProgressIndex += 1000
				}
			}
			var seconds [2]float64
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				for i, model := range models {
					start := processorSeconds(b)
					for step := range pairedSteps {
						if kind.shared && step%2 == 0 {
							at := step / 2 % len(others)
							batch[100], others[at] = others[at], batch[100]
						}
						sink += model.StepTime(batch)
					}
					seconds[i] += processorSeconds(b) - start
				}
			}
			steps := float64(b.N * pairedSteps)
			b.ReportMetric(seconds[0]/steps*1e9, "formula-ns")
			b.ReportMetric(seconds[1]/steps*1e9, "adapter-ns")
			b.ReportMetric(seconds[1]/seconds[0], "ratio")
		})
	}
}

// sharedPrompts makes ten prompts that begin alike of those of a batch, and further requests of the
// same.
func sharedPrompts(batch []*sim.Request) []*sim.Request {
	others := make([]*sim.Request, 16)
	for i := range others {
		others[i] = request(600+int64(i), 1, 400)
	}
	for i, r := range append(append([]*sim.Request{}, batch...), others...) {
		r.InputTokens[0] = 0
		for j := 200; j < len(r.InputTokens); j++ {
			r.InputTokens[j] = sim.TokenID(i%10 + j)
		}
	}
	return others
}

// bundled is BLIS's formula with the coefficients that it comes with.
func bundled() *formula {
	return &formula{
		Beta:    [11]float64{0.152, 0, 1.363, 0.752, 32.1, 4.42, 126, 482, 0, 1.947, 0.752},
		TokenUS: 6.2e-3, PairUS: 4e-7, WeightsUS: 9000, ReduceUS: 0.3, Layers: 48, KVUS: 7e-3,
	}
}

// benchBatch is a mixed step of 128 requests: 126 decodes beside two prefill chunks.
func benchBatch() []*sim.Request {
	batch := make([]*sim.Request, 128)
	for i := range batch {
		batch[i] = request(500+int64(i), 1, 400)
		batch[i].InputTokens[0] = sim.TokenID(i)
	}
	batch[7], batch[90] = request(512, 256, 1024), request(0, 512, 512)
	return batch
}

// sink keeps the compiler from leaving a benchmark's work out.
var sink int64

func processorSeconds(b *testing.B) float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	spent := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)*1e-6 }
	return spent(used.Utime) + spent(used.Stime)
}
