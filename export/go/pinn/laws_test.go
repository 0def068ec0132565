package pinn

import (
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

// zeroRow is a configuration whose every coefficient and cost is 0.
func zeroRow() *Row {
	return &Row{
		Beta: make([]float64, numStepFeatures), Alpha: make([]float64, len(requestFeatures)),
	}
}

func randomBatch(rng *rand.Rand) []*Request {
	numbers := []int64{-1, 0, 1, 15, 16, 700, 4096, 1 << 20, 1 << 40, math.MaxInt64, math.MinInt64}
	pick := func() int64 { return numbers[rng.Intn(len(numbers))] }
	batch := make([]*Request, rng.Intn(6))
	for i := range batch {
		batch[i] = &Request{pick(), pick(), pick()}
	}
	return batch
}

func TestStepTimeIsAtLeastOneForEveryInput(t *testing.T) {
	rows := []*Row{zeroRow()}
	table := goldenTable(t)
	for i := range table.Rows {
		rows = append(rows, &table.Rows[i])
	}
	huge := zeroRow()
	for i := range huge.Beta {
		huge.Beta[i] = math.MaxFloat64
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
		batch := []*Request{}
		last := model.StepTime(batch)
		for range 30 {
			prompt := 1 + rng.Int63n(4000)
			batch = append(batch, &Request{rng.Int63n(2 * prompt), 1 + rng.Int63n(100), prompt})
			next := model.StepTime(batch)
			if next < last {
				t.Fatalf("row %d: %d us with one request more, %d before", i, next, last)
			}
			last = next
		}
	}
}

func TestChunksOfAPromptAddUpToTheSamePairs(t *testing.T) {
	for _, window := range []int64{0, 1, 7, 100, 5000} {
		whole, parts := Sums{window: window}, Sums{window: window}
		whole.Add(0, 1000, 1000)
		for _, chunk := range [][2]int64{{0, 16}, {16, 500}, {516, 484}} {
			parts.Add(chunk[0], chunk[1], 1000)
		}
		if whole.PrefillPairs != parts.PrefillPairs ||
			whole.WindowedPrefillPairs != parts.WindowedPrefillPairs {
			t.Errorf("window %d: %+v, in chunks %+v", window, whole, parts)
		}
	}
}

func TestBatchAndSingleRequestsSumAlike(t *testing.T) {
	rng := rand.New(rand.NewSource(3))
	for range 500 {
		window := []int64{0, 1, 512}[rng.Intn(3)]
		together, single := Sums{window: window}, Sums{window: window}
		batch := make([]*Request, rng.Intn(40))
		for i := range batch {
			batch[i] = &Request{rng.Int63n(3000) - 5, rng.Int63n(300) - 2, rng.Int63n(3000) - 5}
			single.Add(batch[i].ProgressIndex, batch[i].NumNewTokens, batch[i].InputLen)
		}
		if together.AddAll(batch); together != single {
			t.Fatalf("%+v, one by one %+v", together, single)
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
			"beta.layer":                func(r *Row) { r.Beta[fLayer] = bad },
			"alpha.output_token":        func(r *Row) { r.Alpha[4] = bad },
			"cost.kv_read_s":            func(r *Row) { r.Costs.KVRead = bad },
			"cost.offload_s":            func(r *Row) { r.Costs.Offload = bad },
			"cost.windowed_decode_pair": func(r *Row) { r.Costs.WindowedDecodePair = bad },
		} {
			row := zeroRow()
			change(row)
			if _, err := NewModel(row); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s = %v: %v", name, bad, err)
			}
		}
	}
}

func TestCloneForgetsTheRun(t *testing.T) {
	model := goldenModel(t, &goldenTable(t).Rows[0])
	fresh := model.QueueingTime(&Request{InputLen: 100})
	for range 100 {
		model.StepTime([]*Request{{5000, 1, 10}})
	}
	if model.StepAverage() == 0 || model.Clone().StepAverage() != 0 {
		t.Error("the average is not that of the model's own steps")
	}
	if later := model.QueueingTime(&Request{InputLen: 100}); later < fresh {
		t.Errorf("%d us under load, %d before", later, fresh)
	}
	if again := model.Clone().QueueingTime(&Request{InputLen: 100}); again != fresh {
		t.Errorf("%d us from a clone, %d at first", again, fresh)
	}
}

func TestMicrosecondsAreRoundedHalfToEvenAndStayInRange(t *testing.T) {
	seconds := []float64{0, 1.5e-6, 2.5e-6, 3.5e-6, 1e300, math.Inf(1), math.NaN(), -1}
	want := []int64{0, 2, 2, 4, math.MaxInt64, math.MaxInt64, 0, 0}
	var got []int64
	for _, s := range seconds {
		got = append(got, microseconds(s))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}
