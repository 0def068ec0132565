package blis

import (
	"strings"
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
		for _, r := range batch {
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
	all := adapted(t, dense(t)).StepTime(batch)
	shared := adapted(t, dense(t), Options{
		SharedKeys: func(b []*sim.Request) int64 { return int64(len(b)-1) * 8000 },
	})
	once := adapted(t, dense(t)).StepTime([]*sim.Request{request(9000, 1, 8000), request(1000, 1, 500)})
	if got := shared.StepTime(batch); got != once || got >= all {
		t.Errorf("%d us, want %d us, and less than %d us", got, once, all)
	}
}

// Of prompts that begin alike the GPU reads a block once, as far as its cache reaches.
func TestSharedPromptsAreReadOnce(t *testing.T) {
	for _, name := range []string{"codellama/CodeLlama-34b-hf", "google/gemma-3-12b-it"} {
		model := goldenModel(t, name)
		// An adapter to which these requests have come, and one whose count is a function's.
		served := func(batch []*sim.Request) *Adapter {
			adapter := adapted(t, model)
			for _, r := range batch {
				adapter.QueueingTime(r)
			}
			return adapter
		}
		counted := func(keys int64) *Adapter {
			return adapted(t, model, Options{SharedKeys: func([]*sim.Request) int64 { return keys }})
		}
		batch := make([]*sim.Request, 64)
		for i := range batch { // to both sides of a window of 1,024
			batch[i] = request(600+11*int64(i), 1, 519)
			batch[i].InputTokens[0] = sim.TokenID(i % 4) // four prompts, of 32 whole blocks
		}
		counting, all := served(batch), counted(0).StepTime(batch)
		once := counting.StepTime(batch)
		if want := counted(60 * 512).StepTime(batch); once != want || once >= all {
			t.Errorf("%s: %d us, want %d us, less than %d us", name, once, want, all)
		}
		// Others come and go, in any order, some of them with prompts still to be computed.
		for i := range batch {
			newcomer := request(600+int64(i), 1, 519+16*(i%9))
			newcomer.InputTokens[0] = sim.TokenID(i % 7)
			counting.QueueingTime(newcomer)
			batch = append(batch[1+i%3:], batch[0], newcomer)
			for at, r := range batch {
				if i%5 < 4 { // else the engine asks again
					r.ProgressIndex++
				}
				if i%9 == 8 && at%3 == 0 { // nor do others make one token each
					r.ProgressIndex += 40
				}
			}
			if got, want := counting.StepTime(batch), served(batch).StepTime(batch); got != want {
				t.Errorf("%s, %d requests: %d us, but %d us for who never saw others", name, len(batch),
					got, want)
			}
		}
	}
}

// Another request in every step, and one that leaves and comes back: what they need is there.
func TestStepsThatChangeAllocateNothing(t *testing.T) {
	for _, name := range []string{"codellama/CodeLlama-34b-hf", "google/gemma-3-12b-it"} {
		adapter, batch, step := adapted(t, goldenModel(t, name)), benchBatch(), 0
		others := sharedPrompts(adapter, batch)
		change := func() {
			at := step % len(others)
			batch[100], others[at] = others[at], batch[100]
			adapter.StepTime(batch[step%2:])
			step++
		}
		for range 2 * len(others) { // each is known to have left
			change()
		}
		if n := testing.AllocsPerRun(100, change); n != 0 {
			t.Errorf("%s: %v allocations in a step", name, n)
		}
	}
}

func TestPromptsUnlikeEachOtherAreNotFollowed(t *testing.T) {
	adapter := adapted(t, dense(t))
	short := request(20, 1, 15) // shorter than a block, so that it shares none
	batch := []*sim.Request{short, short}
	for i := range 64 {
		batch = append(batch, request(600, 1, 519))
		batch[i+2].InputTokens[0] = sim.TokenID(i)
	}
	for _, r := range batch {
		adapter.QueueingTime(r)
	}
	alone := adapter.StepTime(batch)
	if adapter.prompts.alike || len(adapter.prompts.decodes) > 0 {
		t.Error("steps are searched though no prompt begins like another")
	}
	adapter.QueueingTime(batch[5])
	if got := adapter.StepTime(batch); !adapter.prompts.alike || got != alone {
		t.Errorf("another request like one that ended: %d us, want %d us", got, alone)
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
	adapter, batch := adapted(t, model), []*sim.Request{request(9000, 1, 8000), request(9000, 1, 8000)}
	for _, r := range batch {
		adapter.QueueingTime(r)
	}
	if got, want := adapter.StepTime(batch), adapted(t, model).StepTime(batch); got != want {
		t.Errorf("%d us, want %d us", got, want)
	}
}

// What happens before the first token beside queue and steps: everything is in QueueingTime, with
// one mean step for the batch that vLLM has planned already.
func TestQueueingTimeHoldsWhatIsMissingBeforeTheFirstToken(t *testing.T) {
	model := dense(t)
	adapter := adapted(t, model)
	newcomer := request(0, 0, 500)
	idle := adapter.QueueingTime(newcomer)
	alpha := model.Row().Alpha
	want := pinn.Microseconds(alpha.QueueingSeconds(500) + alpha.SchedulingSeconds())
	if idle != want || idle < 1 {
		t.Errorf("before the first step: %d us, want %d us", idle, want)
	}
	batch := []*sim.Request{request(700, 1, 500)}
	us := adapter.StepTime(batch)
	if busy := adapter.QueueingTime(newcomer); busy < idle+us-1 || busy > idle+2*us {
		t.Errorf("beside steps of %d us: %d us, idle %d us", us, busy, idle)
	}
	adapter.PostDecodeFixedOverhead()
	adapter.PostDecodeFixedOverhead()
	if alone := adapter.QueueingTime(newcomer); alone >= idle+us-1 {
		t.Errorf("an engine that serves nobody else makes it wait: %d us, at first %d us", alone, idle)
	}
	if got := adapter.OutputTokenProcessingTime(); got != 0 {
		t.Errorf("the server's work on a token is in every gap: %d us", got)
	}
	if got, want := adapter.PostDecodeFixedOverhead(), pinn.Microseconds(alpha.Completion); got != want {
		t.Errorf("completion: %d us, model %d us", got, want)
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

func TestStepTimeAllocatesNothing(t *testing.T) {
	adapter, batch := adapted(t, dense(t)), []*sim.Request{request(700, 1, 500), request(0, 9, 300)}
	if n := testing.AllocsPerRun(10, func() { adapter.StepTime(batch) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
