package pinn

import (
	"path/filepath"
	"regexp"
	"testing"
)

// Tables of every layout that was released load, or are refused with what to do.
func TestReleasedTablesLoadOrSayWhatToDo(t *testing.T) {
	remedy := regexp.MustCompile(`export .* again|use the Go package of`)
	paths, err := filepath.Glob(filepath.Join("testdata", "released", "tables", "*.csv"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no released tables: %v", err)
	}
	for _, path := range paths {
		table, err := LoadTable(path)
		switch {
		case err == nil && len(table.Rows) != 1:
			t.Errorf("%s: %d rows", path, len(table.Rows))
		case err != nil && !remedy.MatchString(err.Error()):
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A table of before that has all but the largest fused message is refused with what to do.
func TestTablesWithoutTheLargestFusedMessageSayWhatToDo(t *testing.T) {
	cells := map[string]string{"format": TableFormat, "version": "1", graphSizes: ""}
	for column := range emptyRow().places() {
		cells[column] = "1"
	}
	if err := checkColumns(cells); err != nil {
		t.Fatal(err)
	}
	delete(cells, "cost.one_shot_bytes")
	want := "columns are missing: cost.one_shot_bytes; export the table again with this version of pinn"
	if err := checkColumns(cells); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
