package blis

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"example.com/pinn/export/go/pinn"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/kv"
)

// runs are loads for BLIS's engine that Python writes, see tests/export/test_blis_engine.py.
type runs struct {
	Table string          `json:"table"`
	Loads map[string]load `json:"loads"`
	Runs  []run           `json:"runs"`
}

// load is requests in the order of arrival. The first shared tokens of one are those of another.
type load struct {
	Arrival    []int64 `json:"arrival_us"`
	Prompt     []int   `json:"prompt"`
	Output     []int   `json:"output"`
	SharesWith []int   `json:"shares_with"`
	Shared     []int   `json:"shared"`
}

type run struct {
	Load         string   `json:"load"`
	Blocks       int64    `json:"blocks"`
	BlockSize    int64    `json:"block_size"`
	MaxSeqs      int64    `json:"max_num_seqs"`
	MaxTokens    int64    `json:"max_num_batched_tokens"`
	MaxModelLen  int64    `json:"max_model_len"`
	Coefficients *formula `json:"formula"` // BLIS's own model with these, or
	Row          int      `json:"row"`     // the adapter with a row of the table
	StepAheadUS  int64    `json:"step_ahead_us"`
}

type outcome struct {
	TTFT []float64 `json:"ttft_us"` // 0 for a request that was dropped
	E2E  []float64 `json:"e2e_us"`
}

func (l *load) requests() []*sim.Request {
	found := make([]*sim.Request, len(l.Prompt))
	next := sim.TokenID(0)
	for i, prompt := range l.Prompt {
		tokens := make([]sim.TokenID, 0, prompt)
		if donor := l.SharesWith[i]; donor >= 0 {
			all := found[donor].InputTokens
			tokens = append(tokens, all[:min(l.Shared[i], len(all), prompt)]...)
		}
		for len(tokens) < prompt {
			next++
			tokens = append(tokens, next)
		}
		found[i] = &sim.Request{
			ID: fmt.Sprint(i), InputTokens: tokens, OutputTokens: make([]sim.TokenID, l.Output[i]),
			MaxOutputLen: l.Output[i], State: sim.StateQueued, ArrivalTime: l.Arrival[i],
		}
	}
	return found
}

func (r *run) serve(model sim.LatencyModel, requests []*sim.Request) (*outcome, error) {
	config := sim.SimConfig{
		Horizon:       math.MaxInt64,
		KVCacheConfig: sim.NewKVCacheConfig(r.Blocks, r.BlockSize, 0, 0, 0, 0),
		BatchConfig:   sim.NewBatchConfig(r.MaxSeqs, r.MaxTokens, 0),
	}
	config.MaxModelLen = r.MaxModelLen
	s, err := sim.NewSimulator(config, kv.NewKVCacheState(r.Blocks, r.BlockSize), model)
	if err != nil {
		return nil, err
	}
	for _, request := range requests {
		s.InjectArrival(request)
	}
	s.Run()
	found := &outcome{make([]float64, len(requests)), make([]float64, len(requests))}
	for i, request := range requests {
		found.TTFT[i] = float64(s.Metrics.RequestTTFTs[request.ID])
		found.E2E[i] = float64(s.Metrics.RequestE2Es[request.ID])
	}
	return found, nil
}

// TestRunsOfPython serves the runs of the file that PINN_BLIS_RUNS names and writes what their
// clients see beside it.
func TestRunsOfPython(t *testing.T) {
	path := os.Getenv("PINN_BLIS_RUNS")
	if path == "" {
		t.Skip("PINN_BLIS_RUNS names no file of runs")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file runs
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	table, err := pinn.LoadTable(file.Table)
	if err != nil {
		t.Fatal(err)
	}
	found := make([]*outcome, len(file.Runs))
	for i, r := range file.Runs {
		model, err := pinn.NewModel(&table.Rows[r.Row])
		if err != nil {
			t.Fatal(err)
		}
		var latency sim.LatencyModel = adapted(t, model, Options{StepAheadUS: r.StepAheadUS})
		if r.Coefficients != nil {
			latency = r.Coefficients
		}
		load := file.Loads[r.Load]
		if found[i], err = r.serve(latency, load.requests()); err != nil {
			t.Fatal(err)
		}
	}
	text, err = json.Marshal(found)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".out", text, 0o644); err != nil {
		t.Fatal(err)
	}
}
