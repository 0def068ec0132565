// Package blis makes a pinn latency model one of BLIS's.
//
// BLIS's module is not needed to build or test this package: go.mod replaces it by the signatures
// in the folder simulator. Against BLIS itself only [progress], which reads a request, may need a
// change, since the field names of its Request move between versions.
package blis

import (
	"example.com/pinn/export/go/pinn"
	"github.com/inference-sim/inference-sim/sim"
)

// Adapter is a sim.LatencyModel, and that of older trees, for one simulated engine. As BLIS asks
// it, it is not for concurrent use.
type Adapter struct{ model *pinn.Model }

// New wraps a model; the adapter gets a clone of its own.
func New(model *pinn.Model) *Adapter { return &Adapter{model.Clone()} }

// progress reads what a step's features need of BLIS's request.
func progress(r *sim.Request) (progress, newTokens, input int64) {
	return r.ProgressIndex, int64(r.NumNewTokens), int64(len(r.InputTokens))
}

// StepTime is the busy-loop time of the step of a batch, at least 1. It allocates nothing.
func (a *Adapter) StepTime(batch []*sim.Request) int64 {
	sums := a.model.NewSums()
	for _, r := range batch {
		at, newTokens, input := progress(r)
		if at < input {
			sums.AddPrefill(at, newTokens)
		} else {
			sums.AddDecode(at)
		}
	}
	return a.model.StepTimeOf(&sums)
}

// QueueingTime is the time from a request's arrival to the engine's input queue. BLIS simulates the
// wait in that queue itself.
func (a *Adapter) QueueingTime(req *sim.Request) int64 {
	at, newTokens, input := progress(req)
	return a.model.QueueingTime(&pinn.Request{
		ProgressIndex: at, NumNewTokens: newTokens, InputLen: input,
	})
}

// OutputTokenProcessingTime is 0: BLIS would add it to every gap between tokens, but the API server
// works on a token while the engine makes the next one.
func (a *Adapter) OutputTokenProcessingTime() int64 { return 0 }

// PostDecodeFixedOverhead is the time once at completion.
func (a *Adapter) PostDecodeFixedOverhead() int64 { return a.model.PostDecodeFixedOverhead() }

// SchedulingProcessingTime is asked by older trees only: once per request, of the mean prompt.
func (a *Adapter) SchedulingProcessingTime() int64 { return a.model.SchedulingProcessingTime() }

// PreemptionProcessingTime is asked by older trees only: per preemption, of the mean prompt.
func (a *Adapter) PreemptionProcessingTime() int64 { return a.model.PreemptionProcessingTime() }
