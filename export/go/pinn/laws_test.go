package pinn

import (
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

func randomBatch(rng *rand.Rand) []Request {
	numbers := []int64{-1, 0, 1, 15, 16, 700, 4096, 1 << 20, 1 << 40, math.MaxInt64, math.MinInt64}
	pick := func() int64 { return numbers[rng.Intn(len(numbers))] }
	batch := make([]Request, rng.Intn(6))
	for i := range batch {
		batch[i] = Request{pick(), pick(), pick()}
	}
	return batch
}

func TestStepTimeIsAtLeastOneForEveryInput(t *testing.T) {
	rows := []*Row{&Row{}}
	table := goldenTable(t)
	for i := range table.Rows {
		rows = append(rows, &table.Rows[i])
	}
	huge := &Row{}
	for _, beta := range numbers(&huge.Beta) {
		*beta = math.MaxFloat64
	}
	huge.Costs = table.Rows[0].Costs
	rng := rand.New(rand.NewSource(1))
	for _, row := range append(rows, huge) {
		model := goldenModel(t, row)
		if got := model.StepTime(nil); got < 1 {
			t.Fatalf("empty batch: %d", got)
		}
		for range 200 {
			batch := randomBatch(rng)
			if got := model.StepTime(batch); got < 1 {
				t.Fatalf("%v: %d", batch, got)
			}
		}
	}
}

func TestMoreWorkNeverTakesLess(t *testing.T) {
	table, rng := goldenTable(t), rand.New(rand.NewSource(2))
	for i := range table.Rows {
		model := goldenModel(t, &table.Rows[i])
		batch := []Request{}
		last := model.StepTime(batch)
		for range 30 {
			prompt := 1 + rng.Int63n(4000)
			batch = append(batch, Request{rng.Int63n(2 * prompt), 1 + rng.Int63n(100), prompt})
			next := model.StepTime(batch)
			if next < last {
				t.Fatalf("row %d: %d us with one request more, %d before", i, next, last)
			}
			last = next
		}
	}
}

// A step takes the host's own work and the longer of launching and the GPU's work, each alone a step
// whose other coefficients are 0; with drafts, of all passes together.
func TestLaunchingOverlapsTheGPUsWork(t *testing.T) {
	rows := append(goldenTable(t).Rows, speculatingTable(t).Rows...)
	rng, longer := rand.New(rand.NewSource(4)), [2]int{}
	for i := range rows {
		host, launching, gpu := rows[i], rows[i], rows[i]
		host.Beta = StepValues{Step: rows[i].Beta.Step, Request: rows[i].Beta.Request}
		launching.Beta = StepValues{LaunchedLayer: rows[i].Beta.LaunchedLayer}
		gpu.Beta.Step, gpu.Beta.Request, gpu.Beta.LaunchedLayer = 0, 0, 0
		models := []*Model{}
		for _, row := range []*Row{&rows[i], &host, &launching, &gpu} {
			models = append(models, goldenModel(t, row))
		}
		for range 20 {
			batch := []Request{{0, 1 + rng.Int63n(3000), 4000}, {rng.Int63n(9000), 1, 0}}
			sums, seconds := sumsOf(models[0], batch), []float64{}
			for _, model := range models {
				seconds = append(seconds, model.StepSeconds(sums))
			}
			if want := seconds[1] + max(seconds[2], seconds[3]); !near(seconds[0], want, 1e-12) {
				t.Fatalf("row %d, %v: %v s, its parts %v", i, batch, seconds[0], seconds[1:])
			}
			if seconds[2] > seconds[3] {
				longer[0]++
			} else {
				longer[1]++
			}
		}
	}
	if min(longer[0], longer[1]) < 100 {
		t.Errorf("launching is longer in %d steps, the GPU's work in %d", longer[0], longer[1])
	}
}

// The synchronization of large all-reduces begins beyond the largest one-shot or fused message.
func TestLargeAllReducesBeginBeyondOneShotBytes(t *testing.T) {
	for _, oneShot := range []float64{1 << 18, 1 << 19, 1 << 21, 32 << 20} {
		row := &Row{Beta: StepValues{LargeAllReduce: 3e-6}}
		row.Costs = Costs{AllReduces: 65, AllReduceTokenBytes: 8192, OneShotBytes: oneShot}
		model, err := NewModel(row)
		if err != nil {
			t.Fatal(err)
		}
		tokens := int64(oneShot / 8192)
		for more, want := range []float64{0, 3e-6 * 65} {
			sums := &Sums{PrefillTokens: tokens + int64(more), PrefillRequests: 1}
			if got := model.StepSeconds(sums); !near(got, want, 1e-12) {
				t.Errorf("%v bytes, %d tokens: %v s, want %v", oneShot, sums.PrefillTokens, got, want)
			}
		}
	}
}

func TestChunksOfAPromptAddUpToTheSamePairs(t *testing.T) {
	for _, window := range []int64{0, 1, 7, 100, 5000} {
		whole, parts := Sums{window: window}, Sums{window: window}
		whole.Add(Request{0, 1000, 1000})
		for _, chunk := range [][2]int64{{0, 16}, {16, 500}, {516, 484}} {
			parts.Add(Request{chunk[0], chunk[1], 1000})
		}
		if whole.PrefillPairs != parts.PrefillPairs ||
			whole.WindowedPrefillPairs != parts.WindowedPrefillPairs {
			t.Errorf("window %d: %+v, in chunks %+v", window, whole, parts)
		}
	}
}

func TestStepTimeAllocatesNothing(t *testing.T) {
	table, batch := goldenTable(t), benchBatch()
	for i := range table.Rows {
		model := goldenModel(t, &table.Rows[i])
		if n := testing.AllocsPerRun(10, func() { sink += model.StepTime(batch) }); n != 0 {
			t.Fatalf("row %d: %v allocations", i, n)
		}
	}
}

func TestModelsRefuseWhatIsNoLatency(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1e-9} {
		for name, change := range map[string]func(*Row){
			"beta.layer":                func(r *Row) { r.Beta.Layer = bad },
			"alpha.output_token":        func(r *Row) { r.Alpha.OutputToken = bad },
			"cost.kv_read_s":            func(r *Row) { r.Costs.KVRead = bad },
			"cost.offload_s":            func(r *Row) { r.Costs.Offload = bad },
			"cost.windowed_decode_pair": func(r *Row) { r.Costs.WindowedDecodePair = bad },
		} {
			row := &Row{}
			change(row)
			if _, err := NewModel(row); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s = %v: %v", name, bad, err)
			}
		}
	}
}

// A model does not change: the same batch takes the same time whatever was asked before.
func TestStepTimesDependOnTheBatchAlone(t *testing.T) {
	model := goldenModel(t, &goldenTable(t).Rows[0])
	want := model.StepTime(benchBatch())
	done := make(chan int64)
	for i := range 4 {
		go func() {
			for j := range int64(50) {
				model.StepTime([]Request{{5000 * j, 1, int64(i)}})
			}
			done <- model.StepTime(benchBatch())
		}()
	}
	for range 4 {
		if got := <-done; got != want {
			t.Errorf("%d us, at first %d us", got, want)
		}
	}
}

// Of keys that decodes share no more is taken out than they have in common and the cache holds.
func TestSharedKeysAreTakenOutAsFarAsTheCacheReaches(t *testing.T) {
	row := goldenTable(t).Rows[0]
	for _, c := range []struct{ cache, keys, want float64 }{
		{1e9, 0, 0}, {1e9, 500, 500}, {1e9, 1e9, 1998}, {0, 500, 0}, {150, 1000, 150},
	} {
		row.GPUCacheTokens = c.cache
		model := goldenModel(t, &row)
		sums := sumsOf(model, []Request{{999, 1, 10}, {999, 1, 10}})
		model.Reread(sums, int64(c.keys))
		want := min(c.want, math.Floor(model.readShare*2000))
		if got := float64(2000 - sums.DecodeContext); got != want {
			t.Errorf("cache %v, %v keys: %v taken out, want %v", c.cache, c.keys, got, want)
		}
	}
}

func TestMicrosecondsAreRoundedHalfToEvenAndStayInRange(t *testing.T) {
	seconds := []float64{0, 1.5e-6, 2.5e-6, 3.5e-6, 1e300, math.Inf(1), math.NaN(), -1}
	want := []int64{0, 2, 2, 4, math.MaxInt64, math.MaxInt64, 0, 0}
	var got []int64
	for _, s := range seconds {
		got = append(got, Microseconds(s))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}
