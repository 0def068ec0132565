// Command simulate serves a hundred requests on BLIS's engine with the step times of a table.
//
//	go run ./simulate TABLE MODEL GPU
package main

import (
	"fmt"
	"log"
	"math"
	"os"

	"example.com/pinn/export/go/blis"
	"example.com/pinn/export/go/pinn"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/kv"
)

const (
	requests, gapUS = 100, 100_000
	prompt, output  = 547, 248
	blocks          = 28_000 // --total-kv-blocks of the run.sh that 'pinn export blis' writes
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatal("usage: simulate TABLE MODEL GPU")
	}
	key := pinn.Key{Model: os.Args[2], GPU: os.Args[3], TensorParallelSize: 1}
	if err := simulate(os.Args[1], key); err != nil {
		log.Fatal(err)
	}
}

func simulate(table string, key pinn.Key) error {
	cfg := sim.SimConfig{
		Horizon:       math.MaxInt64,
		KVCacheConfig: sim.NewKVCacheConfig(blocks, 16, 0, 0, 0, 0),
		BatchConfig:   sim.NewBatchConfig(256, 8192, 0),
	}
	latency, err := blis.Load(table, key, blis.Options{})
	if err != nil {
		return err
	}
	s, err := sim.NewSimulator(cfg, kv.NewKVCacheState(blocks, 16), latency)
	if err != nil {
		return err
	}
	for i := range requests {
		s.InjectArrival(&sim.Request{
			ID: fmt.Sprint(i), ArrivalTime: int64(i * gapUS), State: sim.StateQueued,
			InputTokens: tokens(i), OutputTokens: make([]sim.TokenID, output), MaxOutputLen: output,
		})
	}
	s.Run()
	var ttft, e2e float64
	for id := range s.Metrics.RequestE2Es {
		ttft += float64(s.Metrics.RequestTTFTs[id]) / requests
		e2e += float64(s.Metrics.RequestE2Es[id]) / requests
	}
	fmt.Printf("%d requests: TTFT %.1f ms, E2E %.0f ms\n", len(s.Metrics.RequestE2Es), ttft/1e3, e2e/1e3)
	return nil
}

// tokens returns a prompt unlike all others.
func tokens(i int) []sim.TokenID {
	found := make([]sim.TokenID, prompt)
	for j := range found {
		found[j] = sim.TokenID(i*prompt + j)
	}
	return found
}
