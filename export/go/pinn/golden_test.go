package pinn

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The golden vectors come from Python: 'make goldens'. PINN_GOLDENS names another folder of them.
func goldenPath(name string) string {
	folder := os.Getenv("PINN_GOLDENS")
	if folder == "" {
		folder = "testdata"
	}
	return filepath.Join(folder, name)
}

// goldenLines reads a gzipped file with one JSON value per line.
func goldenLines[T any](t testing.TB, name string) []T {
	t.Helper()
	file, err := os.Open(goldenPath(name))
	if err != nil {
		t.Fatalf("%v: write it with 'make goldens'", err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []T
	lines := bufio.NewScanner(unpacked)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var value T
		if err := json.Unmarshal(lines.Bytes(), &value); err != nil {
			t.Fatal(err)
		}
		found = append(found, value)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

func goldenTable(t testing.TB) *Table {
	t.Helper()
	table, err := LoadTable(goldenPath("table.json"))
	if err != nil {
		t.Fatalf("%v: write it with 'make goldens'", err)
	}
	return table
}

func goldenModel(t testing.TB, row *Row) *Model {
	t.Helper()
	model, err := NewModel(row)
	if err != nil {
		t.Fatal(err)
	}
	return model
}

type stepCase struct {
	Row      int       `json:"row"`
	Batch    []int64   `json:"batch"`
	Seconds  float64   `json:"seconds"`
	US       int64     `json:"us"`
	Terms    []int64   `json:"terms"`
	Features []float64 `json:"features"`
}

func (c *stepCase) batch() []Request {
	var found []Request
	for i := 0; i < len(c.Batch); i += 3 {
		found = append(found, Request{c.Batch[i], c.Batch[i+1], c.Batch[i+2]})
	}
	return found
}

// differs reports whether two whole numbers differ by more than rounding a tie may do: the exact
// value lies within 1e-9 of a tie, relative to its size where that is above 1.
func differs(got, want int64, exact float64) bool {
	if got == want {
		return false
	}
	fromTie := math.Abs(math.Abs(exact-math.Trunc(exact)) - 0.5)
	return got-want > 1 || want-got > 1 || fromTie > 1e-9*max(1, math.Abs(exact))
}

func TestRegistryIsPythons(t *testing.T) {
	raw, err := os.ReadFile(goldenPath("manifest.json"))
	if err != nil {
		t.Fatalf("%v: write it with 'make goldens'", err)
	}
	var manifest struct {
		Registry map[string][]string `json:"registry"`
	}
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	r := emptyRow()
	for part, got := range map[string][]string{
		"step_features":    columnsOf(&r.Beta),
		"request_features": columnsOf(&r.Alpha),
		"costs":            columnsOf(&r.Costs),
	} {
		if want := manifest.Registry[part]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: Go implements\n%v, Python\n%v", part, got, want)
		}
	}
}

func columnsOf[T StepValues | RequestValues | Costs](s *T) (columns []string) {
	for column := range numbers(s) {
		columns = append(columns, column)
	}
	return columns
}

func TestStepTimesEqualPython(t *testing.T) { checkSteps(t, goldenTable(t), "steps.json.gz") }

// Rows that draft tokens and verify them.
func TestSpeculativeStepTimesEqualPython(t *testing.T) {
	table := speculatingTable(t)
	checkSteps(t, table, "speculating_steps.json.gz")
	for i := range table.Rows {
		drafts := table.Rows[i].Drafts
		var want float64
		text := table.Rows[i].Config["tokens_per_step"]
		if _, err := fmt.Sscan(text, &want); err != nil || !near(drafts.TokensPerStep(), want, 1e-12) {
			t.Errorf("row %d: %v tokens a step, Python %q", i, drafts.TokensPerStep(), text)
		}
	}
}

func checkSteps(t *testing.T, table *Table, file string) {
	var models []*Model
	for i := range table.Rows {
		models = append(models, goldenModel(t, &table.Rows[i]))
	}
	off, cases := 0, goldenLines[stepCase](t, file)
	for i, c := range cases {
		model := models[c.Row]
		batch := c.batch()
		got := model.StepTime(batch)
		if differs(got, c.US, c.Seconds*1e6) {
			t.Errorf("case %d: %d us, Python %d (%v s)", i, got, c.US, c.Seconds)
		}
		if got != c.US {
			off++
		}
		checkFeatures(t, fmt.Sprint("case ", i), model.Features(sumsOf(model, batch)), &c)
	}
	t.Logf("%d step times, %d one microsecond off at a tie", len(cases), off)
}

func sumsOf(model *Model, batch []Request) *Sums {
	sums := model.NewSums()
	for _, r := range batch {
		sums.Add(r)
	}
	return &sums
}

func checkFeatures(t *testing.T, where string, features StepValues, c *stepCase) {
	t.Helper()
	j := 0
	for column, value := range numbers(&features) {
		exact := *value
		if strings.HasSuffix(column, "[1]") {
			exact *= 1e6
		}
		if differs(int64(math.RoundToEven(exact)), c.Terms[j], exact) {
			t.Errorf("%s, %s: %v, Python %d", where, column, exact, c.Terms[j])
		}
		if c.Features != nil && !near(*value, c.Features[j], 1e-12) {
			t.Errorf("%s, %s: %v, Python %v", where, column, *value, c.Features[j])
		}
		j++
	}
}

// near compares relatively; tiny differences of larger numbers, experts_hit for one, are let pass.
func near(got, want, tolerance float64) bool {
	return math.Abs(got-want) <= tolerance*math.Abs(want)+1e-16
}

type phaseCase struct {
	Row    int              `json:"row"`
	Prompt int64            `json:"prompt"`
	US     map[string]int64 `json:"us"`
}

func TestRequestTimesEqualPython(t *testing.T) {
	table := goldenTable(t)
	for i, c := range goldenLines[phaseCase](t, "phases.json.gz") {
		alpha := table.Rows[c.Row].Alpha
		got := map[string]int64{
			"queueing":     Microseconds(alpha.QueueingSeconds(c.Prompt)),
			"scheduling":   Microseconds(alpha.SchedulingSeconds()),
			"output_token": Microseconds(alpha.OutputToken),
			"completion":   Microseconds(alpha.Completion),
			"preemption":   Microseconds(alpha.Preemption),
		}
		if !reflect.DeepEqual(got, c.US) {
			t.Errorf("case %d: %v, Python %v", i, got, c.US)
		}
	}
}

func TestCSVAndJSONHoldTheSame(t *testing.T) {
	fromJSON := goldenTable(t)
	fromCSV, err := LoadTable(goldenPath("table.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if len(fromCSV.Rows) != len(fromJSON.Rows) {
		t.Fatalf("%d rows, %d in JSON", len(fromCSV.Rows), len(fromJSON.Rows))
	}
	for i := range fromCSV.Rows {
		a, b := fromCSV.Rows[i], fromJSON.Rows[i]
		a.Config, b.Config = nil, nil
		if fmt.Sprint(a) != fmt.Sprint(b) { // NaN where there are no intervals
			t.Errorf("row %d differs:\n%v\n%v", i, a, b)
		}
	}
}
