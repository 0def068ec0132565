package sim_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/kv"
)

// constant takes 1 ms for a step and remembers the batches.
type constant struct{ batches [][]sim.Request }

func (c *constant) StepTime(batch []*sim.Request) int64 {
	seen := make([]sim.Request, len(batch))
	for i, r := range batch {
		seen[i] = *r
	}
	c.batches = append(c.batches, seen)
	return 1000
}
func (c *constant) QueueingTime(*sim.Request) int64  { return 50 }
func (c *constant) OutputTokenProcessingTime() int64 { return 5 }
func (c *constant) PostDecodeFixedOverhead() int64   { return 300 }

func serve(t *testing.T, blocks, seqs, tokens int64, requests ...*sim.Request) (*sim.Simulator, *constant) {
	t.Helper()
	model := &constant{}
	cfg := sim.SimConfig{
		Horizon:       math.MaxInt64,
		KVCacheConfig: sim.NewKVCacheConfig(blocks, 16, 0, 0, 0, 0),
		BatchConfig:   sim.NewBatchConfig(seqs, tokens, 0),
	}
	s, err := sim.NewSimulator(cfg, kv.NewKVCacheState(blocks, 16), model)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range requests {
		r.ID, r.State = fmt.Sprint(i), sim.StateQueued
		s.InjectArrival(r)
	}
	s.Run()
	return s, model
}

// request has a prompt of its own, told by its first token.
func request(at int64, first sim.TokenID, input, output int) *sim.Request {
	tokens := make([]sim.TokenID, input)
	tokens[0] = first
	return &sim.Request{ArrivalTime: at, InputTokens: tokens, OutputTokens: make([]sim.TokenID, output)}
}

func TestTimesOfOneRequest(t *testing.T) {
	s, model := serve(t, 100, 8, 2048, request(7, 1, 100, 8))
	if got := s.Metrics.RequestTTFTs["0"]; got != 50+1000+5 {
		t.Errorf("TTFT %v", got)
	}
	if got := s.Metrics.RequestE2Es["0"]; got != 50+8*(1000+5)+300 {
		t.Errorf("E2E %v", got)
	}
	if len(model.batches) != 8 || model.batches[0][0].ProgressIndex != 0 ||
		model.batches[1][0].ProgressIndex != 100 {
		t.Errorf("%d steps", len(model.batches))
	}
}

func TestPromptsAreCutAtTheBudgetAndDecodesGoFirst(t *testing.T) {
	_, model := serve(t, 100, 8, 64, request(0, 1, 32, 4), request(0, 2, 80, 1))
	var tokens [][]int
	for _, batch := range model.batches {
		row := []int{}
		for _, r := range batch {
			row = append(row, r.NumNewTokens)
		}
		tokens = append(tokens, row)
	}
	if got := fmt.Sprint(tokens); got != "[[32 32] [1 48] [1] [1]]" {
		t.Errorf("tokens %s", got)
	}
}

func TestACachedPrefixIsNotComputedAndShowsNoProgress(t *testing.T) {
	_, model := serve(t, 100, 8, 2048, request(0, 1, 40, 1), request(5000, 1, 40, 1))
	if r := model.batches[1][0]; r.NumNewTokens != 40-32 || r.ProgressIndex != 0 {
		t.Errorf("%d new tokens at %d", r.NumNewTokens, r.ProgressIndex)
	}
}

func TestTheLastIsEvictedAndBeginsAgain(t *testing.T) {
	s, _ := serve(t, 5, 8, 2048, request(0, 1, 32, 30), request(0, 2, 32, 30))
	if s.Metrics.PreemptionCount == 0 || s.Metrics.CompletedRequests != 2 {
		t.Errorf("%d preemptions, %d completed", s.Metrics.PreemptionCount, s.Metrics.CompletedRequests)
	}
	if first, again := s.Metrics.RequestTTFTs["0"], s.Metrics.RequestTTFTs["1"]; again < 10*first {
		t.Errorf("TTFT of the evicted request is %v, of the other %v", again, first)
	}
}

func TestWhatCanNeverBeServedIsDropped(t *testing.T) {
	s, _ := serve(t, 2, 8, 2048, request(0, 1, 40, 1), request(0, 2, 20, 1))
	if s.Metrics.DroppedUnservable != 1 || s.Metrics.CompletedRequests != 1 {
		t.Errorf("%+v", s.Metrics)
	}
}
