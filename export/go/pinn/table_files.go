package pinn

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// LoadTable reads a table file; its name must end in .json or .csv. Of the Parquet form, which
// needs more than the standard library, write one of these two instead.
func LoadTable(path string) (*Table, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var table *Table
	switch suffix := strings.ToLower(filepath.Ext(path)); suffix {
	case ".json":
		table, err = ReadTableJSON(file)
	case ".csv":
		table, err = ReadTableCSV(file)
	default:
		err = fmt.Errorf("cannot read tables that end in %q: export .json or .csv", suffix)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return table, nil
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

// ReadTableJSON reads what 'pinn export table --format json' writes.
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
	for number, raw := range file.Rows {
		cells, where := map[string]string{}, fmt.Sprintf("row %d", number+1)
		for name, cell := range raw {
			cells[name] = jsonText(cell)
		}
		if err := checkColumns(slices.Sorted(maps.Keys(cells))); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		row, err := readRow(cells, where)
		if err != nil {
			return nil, err
		}
		table.Rows = append(table.Rows, row)
	}
	if len(table.Rows) == 0 {
		return nil, errNoRows
	}
	return table, nil
}

var errNoRows = errors.New("the table has no rows")

// jsonText is a cell of a JSON table. Words in place of numbers, such as "NaN", are read as such so
// that they are refused with their name.
func jsonText(raw json.RawMessage) string {
	var text string
	if raw = bytes.TrimSpace(raw); json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return text
}

// ReadTableCSV reads what 'pinn export table --format csv' writes; it fails as [ReadTableJSON].
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
	for number := 1; ; number++ {
		where := fmt.Sprintf("row %d", number)
		texts, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		cells := map[string]string{}
		for i, name := range names {
			cells[name] = texts[i]
		}
		version, err := strconv.Atoi(cells["version"])
		if err != nil {
			return nil, fmt.Errorf("%s: version must be a whole number, got %q", where, cells["version"])
		}
		if err := checkVersion(TableFormat, cells["format"], version, TableVersion); err != nil {
			return nil, err
		}
		row, err := readRow(cells, where)
		if err != nil {
			return nil, err
		}
		table.Rows = append(table.Rows, row)
	}
	if len(table.Rows) == 0 {
		return nil, errNoRows
	}
	for _, name := range []string{"source", "checkpoint_sha256"} {
		if text := table.Rows[0].Config[name]; text != "" {
			table.Provenance[name] = text
		}
	}
	return table, nil
}
