package pinn

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// LoadTable reads a table file; its name must end in .json or .csv. Of the Parquet form, which
// needs more than the standard library, write one of these two instead.
func LoadTable(path string) (*Table, error) {
	switch suffix := strings.ToLower(filepath.Ext(path)); suffix {
	case ".json":
		return load(path, ReadTableJSON)
	case ".csv":
		return load(path, ReadTableCSV)
	default:
		return nil, fmt.Errorf("cannot read tables that end in %q: export .json or .csv", suffix)
	}
}

// LoadModel makes the latency model of the only row of a table file that has the given values, see
// [Table.Find].
func LoadModel(path string, want map[string]string) (*Model, error) {
	table, err := LoadTable(path)
	if err != nil {
		return nil, err
	}
	row, err := table.Find(want)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return NewModel(row)
}

// ReadTableJSON reads what 'pinn export table' to a .json file writes.
//
// It fails where the file is of another version or lacks a coefficient, or where one is negative,
// infinite or no number, with the row and the name.
func ReadTableJSON(r io.Reader) (*Table, error) {
	var file struct {
		Format     string                       `json:"format"`
		Version    int                          `json:"version"`
		Provenance map[string]any               `json:"provenance"`
		Rows       []map[string]json.RawMessage `json:"rows"`
	}
	if err := json.NewDecoder(r).Decode(&file); err != nil {
		return nil, fmt.Errorf("malformed JSON: %w", err)
	}
	if err := checkVersion(TableFormat, file.Format, file.Version, TableVersion); err != nil {
		return nil, err
	}
	table := &Table{Provenance: file.Provenance}
	for _, raw := range file.Rows {
		cells := map[string]string{}
		for name, cell := range raw {
			cells[name] = jsonText(cell)
		}
		if err := checkColumns(slices.Sorted(maps.Keys(cells))); err != nil {
			return nil, fmt.Errorf("%s: %w", table.next(), err)
		}
		if err := table.add(cells); err != nil {
			return nil, err
		}
	}
	return table.filled()
}

// next names the row that is added next.
func (t *Table) next() string { return fmt.Sprintf("row %d", len(t.Rows)+1) }

func (t *Table) add(cells map[string]string) error {
	row, err := readRow(cells, t.next())
	t.Rows = append(t.Rows, row)
	return err
}

func (t *Table) filled() (*Table, error) {
	if len(t.Rows) == 0 {
		return nil, errors.New("the table has no rows")
	}
	return t, nil
}

// jsonText is a cell of a JSON table. Words in place of numbers, such as "NaN", are read as such so
// that they are refused with their name.
func jsonText(raw json.RawMessage) string {
	var text string
	if raw = bytes.TrimSpace(raw); json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return text
}

// ReadTableCSV reads what 'pinn export table' to a .csv file writes; it fails as [ReadTableJSON].
func ReadTableCSV(r io.Reader) (*Table, error) {
	reader := csv.NewReader(r)
	names, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("no line of column names: %w", err)
	}
	if !slices.Contains(names, "format") || !slices.Contains(names, "version") {
		return nil, errors.New("no columns format and version: the file is no table of " +
			"'pinn export table'")
	}
	if err := checkColumns(names); err != nil {
		return nil, err
	}
	table := &Table{Provenance: map[string]any{}}
	for {
		texts, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", table.next(), err)
		}
		cells := map[string]string{}
		for i, name := range names {
			cells[name] = texts[i]
		}
		version, err := strconv.Atoi(cells["version"])
		if err != nil {
			return nil, fmt.Errorf("%s: version must be a whole number, got %q", table.next(),
				cells["version"])
		}
		if err := checkVersion(TableFormat, cells["format"], version, TableVersion); err != nil {
			return nil, err
		}
		if err := table.add(cells); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"source", "checkpoint_sha256"} {
		if len(table.Rows) > 0 && table.Rows[0].Config[name] != "" {
			table.Provenance[name] = table.Rows[0].Config[name]
		}
	}
	return table.filled()
}
