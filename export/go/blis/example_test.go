package blis_test

import (
	"fmt"
	"log"
	"math"

	"example.com/pinn/export/go/blis"
	"example.com/pinn/export/go/pinn"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/kv"
)

const (
	blocks         = 28_000 // --total-kv-blocks of the run.sh that 'pinn export blis' writes
	prompt, output = 547, 248
)

// A table's row serves a hundred requests on BLIS's engine.
func Example() {
	table, err := pinn.LoadTable("testdata/table.json")
	if err != nil {
		log.Fatal(err)
	}
	row, err := table.Find(pinn.Key{Model: "Qwen3-30B-A3B", GPU: "H100", TensorParallelSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	model, err := pinn.NewModel(row)
	if err != nil {
		log.Fatal(err)
	}
	latency, err := blis.New(model, blis.Options{})
	if err != nil {
		log.Fatal(err)
	}
	cfg := sim.SimConfig{
		Horizon:       math.MaxInt64,
		KVCacheConfig: sim.NewKVCacheConfig(blocks, 16, 0, 0, 0, 0),
		BatchConfig:   sim.NewBatchConfig(256, 8192, 0),
	}
	s, err := sim.NewSimulator(cfg, kv.NewKVCacheState(blocks, 16), latency)
	if err != nil {
		log.Fatal(err)
	}
	for i := range 100 {
		s.InjectArrival(&sim.Request{
			ID: fmt.Sprint(i), ArrivalTime: int64(i) * 100_000, State: sim.StateQueued,
			InputTokens: tokens(i), OutputTokens: make([]sim.TokenID, output), MaxOutputLen: output,
		})
	}
	s.Run()
	ttft, e2e := 0.0, 0.0
	for id := range s.Metrics.RequestE2Es {
		ttft += float64(s.Metrics.RequestTTFTs[id])
		e2e += float64(s.Metrics.RequestE2Es[id])
	}
	fmt.Println(len(s.Metrics.RequestE2Es), "requests; first tokens come before last ones:", 0 < ttft && ttft < e2e)
	// Output: 100 requests; first tokens come before last ones: true
}

// tokens returns a prompt unlike all others.
func tokens(i int) []sim.TokenID {
	found := make([]sim.TokenID, prompt)
	for j := range found {
		found[j] = sim.TokenID(i*prompt + j)
	}
	return found
}
