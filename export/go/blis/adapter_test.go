package blis

import (
	"testing"

	"example.com/pinn/export/go/pinn"
	"github.com/inference-sim/inference-sim/sim"
)

var (
	_ sim.LatencyModel      = (*Adapter)(nil)
	_ sim.OlderLatencyModel = (*Adapter)(nil)
)

func goldenModel(t testing.TB) *pinn.Model {
	t.Helper()
	table, err := pinn.LoadTable("../pinn/testdata/table.json")
	if err != nil {
		t.Fatal(err)
	}
	model, err := pinn.NewModel(&table.Rows[0])
	if err != nil {
		t.Fatal(err)
	}
	return model
}

func request(progress int64, newTokens, input int) *sim.Request {
	return &sim.Request{InputTokens: make([]int, input), ProgressIndex: progress, NumNewTokens: newTokens}
}

func TestTheAdapterGivesTheModelsTimes(t *testing.T) {
	model := goldenModel(t)
	adapter := New(model)
	batch := []*sim.Request{request(700, 1, 500), request(0, 256, 300), request(256, 44, 300)}
	own := []*pinn.Request{}
	for _, r := range batch {
		at, newTokens, input := progress(r)
		own = append(own, &pinn.Request{ProgressIndex: at, NumNewTokens: newTokens, InputLen: input})
	}
	for range 3 {
		if got, want := adapter.StepTime(batch), model.StepTime(own); got != want || got < 2 {
			t.Errorf("step: %d, model %d", got, want)
		}
		if got, want := adapter.QueueingTime(batch[1]), model.QueueingTime(own[1]); got != want {
			t.Errorf("queueing: %d, model %d", got, want)
		}
	}
	for name, times := range map[string][2]int64{
		"output":     {adapter.OutputTokenProcessingTime(), 0},
		"completion": {adapter.PostDecodeFixedOverhead(), model.PostDecodeFixedOverhead()},
		"scheduling": {adapter.SchedulingProcessingTime(), model.SchedulingProcessingTime()},
		"preemption": {adapter.PreemptionProcessingTime(), model.PreemptionProcessingTime()},
	} {
		if times[0] != times[1] {
			t.Errorf("%s: %d, model %d", name, times[0], times[1])
		}
	}
	if got := adapter.StepTime(nil); got != 1 {
		t.Errorf("empty batch: %d", got)
	}
}

func TestStepTimeAllocatesNothing(t *testing.T) {
	adapter, batch := New(goldenModel(t)), []*sim.Request{request(700, 1, 500), request(0, 9, 300)}
	if n := testing.AllocsPerRun(10, func() { adapter.StepTime(batch) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkStepTime128(b *testing.B) {
	adapter, batch := New(goldenModel(b)), make([]*sim.Request, 128)
	for i := range batch {
		batch[i] = request(500+int64(i), 1, 400)
	}
	batch[7], batch[90] = request(512, 256, 1024), request(0, 512, 512)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		adapter.StepTime(batch)
	}
}
