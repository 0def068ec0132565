package pinn

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// useTable does with a table what a simulator does; nothing that a loader lets through may fail.
func useTable(t *testing.T, table *Table) {
	for i := range table.Rows {
		model, err := NewModel(&table.Rows[i])
		if err != nil {
			t.Fatalf("a loaded row is refused: %v", err)
		}
		useModel(t, model)
	}
}

func useModel(t *testing.T, model *Model) {
	for _, batch := range [][]Request{nil, {{5, 7, 20}}, {{1 << 40, 1, 1}, {0, 1 << 40, 1 << 41}}} {
		if got := model.StepTime(batch); got < 1 {
			t.Fatalf("step time %d", got)
		}
	}
	alpha := &model.Row().Alpha
	for _, got := range []float64{
		alpha.QueueingSeconds(20), alpha.SchedulingSeconds(), alpha.OutputToken, alpha.Completion,
	} {
		if Microseconds(got) < 0 {
			t.Fatalf("negative time %v", got)
		}
	}
}

func FuzzReadTableJSON(f *testing.F) {
	tree := goldenTree(f)
	row := tree["rows"].([]any)[0].(map[string]any)
	row["beta_low.layer [s/layer]"], row["beta_high.layer [s/layer]"] = 0.25, nil
	tree["rows"] = []any{row}
	f.Add(encoded(f, tree))
	drafting := speculatingTree(f)
	drafting["rows"] = drafting["rows"].([]any)[:1]
	f.Add(encoded(f, drafting))
	f.Add([]byte(`{"format":"pinn.coefficient_table","version":1,"rows":[{}]}`))
	f.Add([]byte(`{"format":"pinn.coefficient_table","version":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if table, err := ReadTableJSON(bytes.NewReader(data)); err == nil {
			useTable(t, table)
		}
	})
}

func FuzzReadTableCSV(f *testing.F) {
	raw, err := os.ReadFile(goldenPath("table.csv"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(strings.Join(strings.SplitAfterN(string(raw), "\n", 3)[:2], ""))
	f.Add("format,version\npinn.coefficient_table,1\n")
	f.Fuzz(func(t *testing.T, data string) {
		if table, err := ReadTableCSV(strings.NewReader(data)); err == nil {
			useTable(t, table)
		}
	})
}
