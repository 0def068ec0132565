package blis

import (
	"math"

	"github.com/inference-sim/inference-sim/sim"
)

// formula is BLIS's own latency model, from its documentation: eleven terms of sums over the batch,
// with what does not change worked out beforehand.
type formula struct {
	Alpha       [3]float64  `json:"alpha"`
	Beta        [11]float64 `json:"beta"`
	TokenUS     float64     `json:"token_us"`
	PairUS      float64     `json:"pair_us"`
	WeightsUS   float64     `json:"weights_us"`
	Layers      float64     `json:"layers"`
	Interleaved float64     `json:"interleaved"`
	ReduceUS    float64     `json:"reduce_us"`
	KVUS        float64     `json:"kv_us"`
	DispatchUS  float64     `json:"dispatch_us"`
}

func (f *formula) StepTime(batch []*sim.Request) int64 {
	var prefillTokens, reach, decodes, context float64
	for _, r := range batch {
		if input := int64(len(r.InputTokens)); r.ProgressIndex < input {
			t := float64(r.NumNewTokens)
			prefillTokens += t
			reach += t * (float64(input) + t/2)
		} else {
			decodes++
			context += float64(r.ProgressIndex)
		}
	}
	tokens := prefillTokens + decodes
	x := [11]float64{
		f.TokenUS*prefillTokens + f.PairUS*reach,
		f.TokenUS*decodes + f.PairUS*context,
		f.WeightsUS, f.ReduceUS * tokens, f.Layers, float64(len(batch)), 1, f.Interleaved,
		f.KVUS * prefillTokens, f.KVUS * (context + decodes), f.DispatchUS * tokens,
	}
	total := 0.0
	for i, b := range f.Beta {
		total += b * x[i]
	}
	return max(int64(math.Trunc(total)), 1)
}

func (f *formula) QueueingTime(*sim.Request) int64  { return int64(f.Alpha[0]) }
func (f *formula) PostDecodeFixedOverhead() int64   { return int64(f.Alpha[1]) }
func (f *formula) OutputTokenProcessingTime() int64 { return int64(f.Alpha[2]) }
