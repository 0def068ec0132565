package blis

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"example.com/pinn/export/go/pinn"

	"github.com/inference-sim/inference-sim/sim"
)

var _ sim.LatencyModel = (*Adapter)(nil)

// adapted is New of a model that BLIS can run, with one Options or none.
func adapted(t testing.TB, model *pinn.Model, options ...Options) *Adapter {
	t.Helper()
	found, err := New(model, append(options, Options{})[0])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// tablePath is a table of 'make goldens': three models, and one that speculates.
const tablePath = "testdata/table.json"

func goldenModel(t testing.TB, name string) *pinn.Model {
	t.Helper()
	return modelOf(t, pinn.Key{Model: name, GPU: "H100", TensorParallelSize: 2})
}

func modelOf(t testing.TB, key pinn.Key) *pinn.Model {
	t.Helper()
	table, err := pinn.LoadTable(tablePath)
	if err != nil {
		t.Fatal(err)
	}
	row, err := table.Find(key)
	if err != nil {
		t.Fatal(err)
	}
	model, err := pinn.NewModel(row)
	if err != nil {
		t.Fatal(err)
	}
	return model
}

func dense(t testing.TB) *pinn.Model { return goldenModel(t, "codellama/CodeLlama-34b-hf") }

func request(progress int64, newTokens, input int) *sim.Request {
	return &sim.Request{
		InputTokens: make([]sim.TokenID, input), ProgressIndex: progress, NumNewTokens: newTokens,
	}
}

func TestStepTimesAreTheModels(t *testing.T) {
	mixed := []*sim.Request{request(700, 1, 500), request(0, 300, 300), request(256, 44, 300)}
	long := []*sim.Request{}
	for i := range int64(11) { // to both sides of a window of 1,024
		long = append(long, request(600+90*i, 1, 500))
	}
	for _, batch := range [][]*sim.Request{mixed, long[:3], long[:4], long, append(long, mixed...)} {
		own := []pinn.Request{}
		for i, r := range batch {
			r.InputTokens[0] = sim.TokenID(i) // no keys in common
			own = append(own, pinn.Request{
				ProgressIndex: r.ProgressIndex, NumNewTokens: int64(r.NumNewTokens),
				InputLen: int64(len(r.InputTokens)),
			})
		}
		for _, model := range []*pinn.Model{dense(t), goldenModel(t, "google/gemma-3-12b-it")} {
			got, want := adapted(t, model).StepTime(batch), model.StepTime(own)
			if got != want || got < 2 {
				t.Errorf("step of %d requests: %d, model %d", len(batch), got, want)
			}
		}
	}
	if got := adapted(t, dense(t)).StepTime(nil); got != 1 {
		t.Errorf("empty batch: %d", got)
	}
}

// BLIS leaves ProgressIndex at 0 before a request's first step, whatever its cache holds.
func TestCachedPrefixesAreCounted(t *testing.T) {
	const prompt, question = 30000, 30000 - 16*1800
	step := func(r *sim.Request, options ...Options) int64 {
		return adapted(t, dense(t), options...).StepTime([]*sim.Request{r})
	}
	cached := step(request(16*1800, question, prompt))
	if got := step(request(0, question, prompt)); got != cached {
		t.Errorf("a newcomer behind a cached prefix: %d us, with its progress known %d us", got, cached)
	}
	alone := step(request(0, question, question))
	if cached < alone+100 {
		t.Errorf("reading 28,800 cached keys takes no time: %d us against %d us", cached, alone)
	}
	// A step whose tokens are spent has cut the prompt; so has one of another size than whole blocks.
	cut := step(request(0, question, prompt), Options{TokensPerStep: question})
	if odd := step(request(0, question+1, prompt)); cut != alone || odd > alone+100 {
		t.Errorf("cut prompts: %d and %d us, alone %d us", cut, odd, alone)
	}
}

func TestSharedKeysAreReadOnce(t *testing.T) {
	batch := []*sim.Request{request(9000, 1, 8000), request(9000, 1, 8000)}
	alone := func([]*sim.Request) int64 { return 0 }
	all := adapted(t, dense(t), Options{SharedKeys: alone}).StepTime(batch)
	once := adapted(t, dense(t), Options{
		SharedKeys: func(b []*sim.Request) int64 { return int64(len(b)-1) * 8000 },
	}).StepTime(batch)
	if got := adapted(t, dense(t)).StepTime(batch); got != once || got >= all {
		t.Errorf("%d us, want %d us, and less than %d us", got, once, all)
	}
}

// Of prompts that begin alike whole leading blocks count, one time less than there are prompts.
func TestLeadingBlocksAreCounted(t *testing.T) {
	batch := make([]*sim.Request, 64)
	for i := range batch {
		batch[i] = request(600, 1, 519)
		batch[i].InputTokens[0] = sim.TokenID(i % 4) // four prompts, of 32 whole blocks
	}
	count := LeadingBlocks(16)
	if got := count(batch); got != 60*512 {
		t.Errorf("%d keys, want %d", got, 60*512)
	}
	for i, r := range batch { // unlike each other from the 200th token on
		for j := 200; j < len(r.InputTokens); j++ {
			r.InputTokens[j] = sim.TokenID(i + j)
		}
	}
	if got := count(batch); got != 60*192 {
		t.Errorf("%d keys, want %d", got, 60*192)
	}
	short, prompt := request(20, 1, 15), request(0, 519, 519)
	if got := count([]*sim.Request{short, short, batch[0], prompt}); got != 0 {
		t.Errorf("%d keys of prompts shorter than a block or not yet computed", got)
	}
	for i, r := range batch {
		r.InputTokens[0] = sim.TokenID(1000 + i)
	}
	if got := count(batch); got != 0 {
		t.Errorf("%d keys of prompts unlike each other", got)
	}
}

// A row without prefix caching keeps every prompt's keys for itself.
func TestWithoutPrefixCachingNothingIsShared(t *testing.T) {
	row := *dense(t).Row()
	row.PrefixCaching = false
	model, err := pinn.NewModel(&row)
	if err != nil {
		t.Fatal(err)
	}
	batch := []*sim.Request{request(9000, 1, 8000), request(9000, 1, 8000)}
	got, shared := adapted(t, model).StepTime(batch), adapted(t, dense(t)).StepTime(batch)
	if got <= shared {
		t.Errorf("%d us, with shared keys %d us", got, shared)
	}
}

// What happens before the first token beside queue and steps: everything is in QueueingTime.
func TestQueueingTimeHoldsWhatIsMissingBeforeTheFirstToken(t *testing.T) {
	model := dense(t)
	adapter, alpha := adapted(t, model), model.Row().Alpha
	idle := adapter.QueueingTime(request(0, 0, 500))
	want := pinn.Microseconds(alpha.QueueingSeconds(500) + alpha.SchedulingSeconds())
	if idle != want || idle < 1 {
		t.Errorf("%d us, want %d us", idle, want)
	}
	if busy := adapted(t, model, Options{StepAheadUS: 9000}).QueueingTime(request(0, 0, 500)); busy != idle+9000 {
		t.Errorf("with a step ahead %d us, idle %d us", busy, idle)
	}
	if got := adapter.OutputTokenProcessingTime(); got != 0 {
		t.Errorf("the server's work on a token is in every gap: %d us", got)
	}
	if got, want := adapter.PostDecodeFixedOverhead(), pinn.Microseconds(alpha.Completion); got != want {
		t.Errorf("completion: %d us, model %d us", got, want)
	}
}

// Requests that time out, are dropped or end with their prompt are never completed. A million of them
// change no answer and leave no memory behind. Bytes are bounded instead of allocations, because Go's
// runtime may allocate a few times on its own meanwhile: one byte a request would be 15 times the bound.
func TestAMillionUnfinishedRequestsLeaveNothing(t *testing.T) {
	adapter, probe := adapted(t, dense(t)), request(0, 0, 500)
	batch := benchBatch()
	first, step := adapter.QueueingTime(probe), adapter.StepTime(batch)
	one, prefills := request(0, 100, 100), make([]*sim.Request, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range 1_000_000 {
		adapter.QueueingTime(one) // dropped behind it, or
		switch i % 3 {
		case 0: // only prefilled, or
			prefills[0] = one
			sink += adapter.StepTime(prefills)
		case 1: // timed out while it decodes, or
			one.ProgressIndex = int64(100 + i%900)
			prefills[0] = one
			sink += adapter.StepTime(prefills)
			one.ProgressIndex = 0
		case 2:
			sink += adapter.PostDecodeFixedOverhead() // completed
		}
	}
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 64<<10 {
		t.Errorf("%d bytes allocated", bytes)
	}
	if got := adapter.QueueingTime(probe); got != first {
		t.Errorf("queueing %d us, at first %d us", got, first)
	}
	if got := adapter.StepTime(batch); got != step {
		t.Errorf("step %d us, at first %d us", got, step)
	}
}

// randomBatch returns decodes and chunks of prompts, some of which begin alike.
func randomBatch(random *rand.Rand) []*sim.Request {
	batch := make([]*sim.Request, random.IntN(200))
	for i := range batch {
		prompt := 1 + random.IntN(3000)
		batch[i] = request(int64(prompt+random.IntN(1000)), 1, prompt)
		if random.IntN(10) == 0 {
			batch[i] = request(0, 1+random.IntN(prompt), prompt)
		}
		batch[i].InputTokens[0] = sim.TokenID(random.IntN(100))
	}
	return batch
}

// Equal batches take equal times of at least a microsecond, whatever was asked in between and from
// however many goroutines; nothing is allocated.
func TestStepTimeIsAPureFunctionOfTheBatch(t *testing.T) {
	for _, name := range []string{"codellama/CodeLlama-34b-hf", "google/gemma-3-12b-it", "Qwen/Qwen3-30B-A3B"} {
		adapter, random := adapted(t, goldenModel(t, name)), rand.New(rand.NewPCG(1, 2))
		batches := make([][]*sim.Request, 60)
		want := make([]int64, len(batches))
		for i := range batches {
			batches[i] = randomBatch(random)
			if want[i] = adapter.StepTime(batches[i]); want[i] < 1 {
				t.Errorf("%s: a step of %d us", name, want[i])
			}
		}
		var wait sync.WaitGroup
		for range 4 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for i := len(batches) - 1; i >= 0; i-- {
					adapter.QueueingTime(request(0, 0, 70))
					adapter.PostDecodeFixedOverhead()
					if got := adapter.StepTime(batches[i]); got != want[i] {
						t.Errorf("%s: %d us, before %d us", name, got, want[i])
					}
				}
			}()
		}
		wait.Wait()
		at := 0
		if n := testing.AllocsPerRun(len(batches), func() {
			adapter.StepTime(batches[at%len(batches)])
			at++
		}); n != 0 {
			t.Errorf("%s: %v allocations in a step", name, n)
		}
	}
}

// More work never takes less time: another request, a longer chunk, a longer context.
func TestStepTimeIsMonotone(t *testing.T) {
	for _, name := range []string{"codellama/CodeLlama-34b-hf", "google/gemma-3-12b-it", "Qwen/Qwen3-30B-A3B"} {
		adapter, random := adapted(t, goldenModel(t, name)), rand.New(rand.NewPCG(3, 4))
		for range 300 {
			batch := randomBatch(random)
			before := adapter.StepTime(batch)
			more := append(append([]*sim.Request{}, batch...), request(701, 1, 700))
			if got := adapter.StepTime(more); got < before {
				t.Errorf("%s: another decode: %d us, before %d us", name, got, before)
			}
			if len(batch) == 0 {
				continue
			}
			if r := batch[random.IntN(len(batch))]; decodes(r) {
				r.ProgressIndex += 500
			} else if rest := len(r.InputTokens) - r.NumNewTokens; rest > 0 {
				r.ProgressIndex, before = 0, 0
				prompt := r.InputTokens
				r.InputTokens = prompt[:r.NumNewTokens] // all of it new
				before = adapter.StepTime(batch)
				r.InputTokens, r.NumNewTokens = prompt, len(prompt)
			}
			if got := adapter.StepTime(batch); got < before {
				t.Errorf("%s: more work: %d us, before %d us", name, got, before)
			}
		}
	}
}

// A request has one token of each step in BLIS.
func TestSpeculationIsRefused(t *testing.T) {
	model := modelOf(t, pinn.Key{Model: "DeepSeek-V3", GPU: "H200", TensorParallelSize: 8})
	_, err := New(model, Options{})
	if err == nil || !strings.Contains(err.Error(), "BLIS decodes one token") {
		t.Errorf("it is not refused with the reason: %v", err)
	}
}
