package pinn

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
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
	request := &Request{ProgressIndex: 5, NumNewTokens: 7, InputLen: 20}
	for _, batch := range [][]*Request{nil, {request}, {{1 << 40, 1, 1}, {0, 1 << 40, 1 << 41}}} {
		if got := model.StepTime(batch); got < 1 {
			t.Fatalf("step time %d", got)
		}
	}
	for _, got := range []int64{
		model.QueueingTime(request), model.SchedulingTime(20),
		model.OutputTokenProcessingTime(), model.PostDecodeFixedOverhead(),
		model.PreemptionTime(20),
	} {
		if got < 0 {
			t.Fatalf("negative time %d", got)
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

func FuzzReadSpecs(f *testing.F) {
	raw, err := os.ReadFile(goldenPath("specs.json"))
	if err != nil {
		f.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		f.Fatal(err)
	}
	tree["models"], tree["gpus"] = tree["models"].([]any)[3:4], tree["gpus"].([]any)[:1]
	f.Add(encoded(f, tree))
	f.Add([]byte(`{"format":"pinn.specs","version":3}`))
	network := goldenNetwork(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := ReadSpecs(bytes.NewReader(data))
		if err != nil || len(specs.Models) == 0 || len(specs.GPUs) == 0 {
			return
		}
		deployment, err := specs.Deploy(specs.Models[0].Name, specs.GPUs[0].Name, Serving{})
		if err != nil {
			return
		}
		row, err := network.Row(deployment)
		if err != nil {
			return
		}
		model, err := NewModel(row)
		if err != nil {
			t.Fatal(err)
		}
		useModel(t, model)
	})
}

// tinyCheckpoint is a checkpoint with one hidden unit and every weight 0, small enough to mutate.
func tinyCheckpoint(t testing.TB) []byte {
	t.Helper()
	n := &Network{}
	n.settings.Hidden, n.settings.Depth, n.settings.Corrected = 1, 1, true
	header, offset, data := map[string]any{}, 0, []byte(nil)
	for name, shape := range n.shapes() {
		count := 1
		for _, size := range shape {
			count *= size
		}
		header[name] = map[string]any{
			"dtype": "F64", "shape": shape, "data_offsets": []int{offset, offset + 8*count},
		}
		for range count {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(0.5))
		}
		offset += 8 * count
	}
	facts := map[string]any{
		"format_version": CheckpointVersion, "settings": n.settings, "registry": knownRegistry(),
	}
	header["__metadata__"] = map[string]string{"pinn": string(encoded(t, facts))}
	text := encoded(t, header)
	raw := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(raw, text...), data...)
}

func TestTinyCheckpointsAreRead(t *testing.T) {
	if _, err := ReadNetwork(bytes.NewReader(tinyCheckpoint(t))); err != nil {
		t.Fatal(err)
	}
}

func FuzzReadNetwork(f *testing.F) {
	raw := tinyCheckpoint(f)
	f.Add(raw)
	f.Add(raw[:300])
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	deployment, err := goldenSpecs(f).Deploy("Qwen/Qwen3-30B-A3B", "H100-SXM", Serving{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		network, err := ReadNetwork(bytes.NewReader(data))
		if err != nil {
			return
		}
		if row, err := network.Row(deployment); err == nil {
			model, err := NewModel(row)
			if err != nil {
				t.Fatal(err)
			}
			useModel(t, model)
		}
	})
}
