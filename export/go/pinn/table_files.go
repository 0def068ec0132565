package pinn

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
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
	for number, cells := range file.Rows {
		where := fmt.Sprintf("row %d", number+1)
		row, err := jsonRow(cells, where)
		if err != nil {
			return nil, err
		}
		table.Rows = append(table.Rows, row)
	}
	if len(table.Rows) == 0 {
		return nil, errors.New("the table has no rows")
	}
	return table, nil
}

func jsonRow(cells map[string]json.RawMessage, where string) (Row, error) {
	names := make([]string, 0, len(cells))
	for name := range cells {
		names = append(names, name)
	}
	sort.Strings(names)
	c, err := readColumns(names)
	if err != nil {
		return Row{}, fmt.Errorf("%s: %w", where, err)
	}
	values := make([]value, len(names))
	for i, name := range names {
		values[i] = jsonValue(cells[name])
	}
	return c.row(values, where)
}

// jsonValue is a cell of a JSON table. Words in place of numbers, such as "NaN", are read as such
// so that they are refused with their name.
func jsonValue(raw json.RawMessage) value {
	raw = bytes.TrimSpace(raw)
	if bytes.Equal(raw, []byte("null")) {
		return value{}
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return textValue(text)
}

func textValue(text string) value {
	number, err := strconv.ParseFloat(text, 64)
	return value{text, number, err == nil}
}

// ReadTableCSV reads what 'pinn export table --format csv' writes; it fails as [ReadTableJSON].
func ReadTableCSV(r io.Reader) (*Table, error) {
	reader := csv.NewReader(r)
	names, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("no line of column names: %w", err)
	}
	c, formatColumn, versionColumn, err := csvColumns(names)
	if err != nil {
		return nil, err
	}
	table := &Table{}
	for number := 1; ; number++ {
		cells, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", number, err)
		}
		version, err := strconv.Atoi(cells[versionColumn])
		if err != nil {
			return nil, fmt.Errorf("row %d: version must be a whole number, got %q",
				number, cells[versionColumn])
		}
		if err := checkVersion(TableFormat, cells[formatColumn], version, TableVersion); err != nil {
			return nil, err
		}
		values := make([]value, len(cells))
		for i, cell := range cells {
			values[i] = textValue(cell)
		}
		row, err := c.row(values, fmt.Sprintf("row %d", number))
		if err != nil {
			return nil, err
		}
		table.Rows = append(table.Rows, row)
	}
	if len(table.Rows) == 0 {
		return nil, errors.New("the table has no rows")
	}
	table.Provenance = csvProvenance(table.Rows[0].Config)
	return table, nil
}

// csvColumns checks the header only after it is known that the file is a table of some version.
func csvColumns(names []string) (c *columns, format, version int, err error) {
	format, version = -1, -1
	for i, name := range names {
		switch name {
		case "format":
			format = i
		case "version":
			version = i
		}
	}
	if format < 0 || version < 0 {
		return nil, 0, 0, errors.New("no columns format and version: the file is no table of " +
			"'pinn export table'")
	}
	c, err = readColumns(names)
	return c, format, version, err
}

func csvProvenance(config map[string]string) map[string]any {
	found := map[string]any{}
	for _, name := range []string{"source", "checkpoint_sha256"} {
		if text := config[name]; text != "" {
			found[name] = text
		}
	}
	return found
}
