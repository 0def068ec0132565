package pinn

import (
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

// TableFormat and TableVersion are the format and version of the table files that are read.
const (
	TableFormat  = "pinn.coefficient_table"
	TableVersion = 1
)

// LoadTable reads a table file; its name must end in .json or .csv.
func LoadTable(path string) (table *Table, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json":
		table, err = ReadTableJSON(file)
	case ".csv":
		table, err = ReadTableCSV(file)
	default:
		err = errors.New("a table must end in .json or .csv: export one of these")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return table, nil
}

// ReadTableJSON reads what 'pinn export table' writes to a .json file.
//
// It fails where the file has another version, unknown columns or too few, or where a coefficient is
// negative, infinite or no number, with the row and the column.
func ReadTableJSON(r io.Reader) (*Table, error) {
	var file struct {
		Format     string           `json:"format"`
		Version    json.Number      `json:"version"`
		Provenance map[string]any   `json:"provenance"`
		Rows       []map[string]any `json:"rows"`
	}
	decoder := json.NewDecoder(r)
	decoder.UseNumber()
	if err := decoder.Decode(&file); err != nil {
		return nil, malformed(err)
	}
	rows := make([]map[string]string, len(file.Rows))
	for i, cells := range file.Rows {
		rows[i] = texts(cells)
		rows[i]["format"], rows[i]["version"] = file.Format, file.Version.String()
	}
	return newTable(rows, texts(file.Provenance))
}

// malformed returns the error of a document that is no table, in the words of JSON.
func malformed(err error) error {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return fmt.Errorf("malformed JSON: %w", err)
	}
	where := "the document"
	if kind.Field != "" {
		where = fmt.Sprintf("%q", kind.Field)
	}
	return fmt.Errorf("%s must not be of the JSON type %s: write the file with 'pinn export table'", where,
		strings.Fields(kind.Value)[0])
}

// texts returns the values of a JSON object as CSV has them: null as an empty text.
func texts(cells map[string]any) map[string]string {
	found := make(map[string]string, len(cells))
	for column, cell := range cells {
		switch cell.(type) {
		case nil:
			found[column] = ""
		case []any, map[string]any:
			text, _ := json.Marshal(cell) // what came from JSON goes back
			found[column] = string(text)
		default:
			found[column] = fmt.Sprint(cell)
		}
	}
	return found
}

// ReadTableCSV reads what 'pinn export table' writes to a .csv file; it fails as [ReadTableJSON].
func ReadTableCSV(r io.Reader) (*Table, error) {
	lines, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("malformed CSV: %w", err)
	}
	var rows []map[string]string
	provenance := map[string]string{}
	for _, line := range lines[min(1, len(lines)):] {
		cells := make(map[string]string, len(line))
		for i, column := range lines[0] {
			cells[column] = line[i]
		}
		if len(cells) < len(line) {
			return nil, errors.New("a column occurs twice: export the table again")
		}
		for _, column := range []string{"source", "checkpoint_sha256"} {
			provenance[column] = cells[column]
		}
		rows = append(rows, cells)
	}
	return newTable(rows, provenance)
}

// newTable makes a table of rows of cells by their columns.
func newTable(rows []map[string]string, provenance map[string]string) (*Table, error) {
	if len(rows) == 0 {
		return nil, errors.New("the table has no rows: export it again")
	}
	table := &Table{Provenance: provenance}
	for i, cells := range rows {
		err := errors.Join(checkVersion(cells), checkColumns(cells))
		var row *Row
		if err == nil {
			row, err = readRow(cells)
		}
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
		table.Rows = append(table.Rows, *row)
	}
	return table, nil
}

// checkVersion returns an error for rows of another format or version.
func checkVersion(cells map[string]string) error {
	if cells["format"] != TableFormat {
		return fmt.Errorf("format is %q, expected %q: write the file with 'pinn export table'",
			cells["format"], TableFormat)
	}
	if version, err := strconv.Atoi(cells["version"]); err != nil || version != TableVersion {
		return fmt.Errorf("version is %q, expected %d: export the table again, or use the Go package of "+
			"the program that wrote it", cells["version"], TableVersion)
	}
	return nil
}

// checkColumns returns an error for named numbers that this package does not know and for those that
// are missing.
func checkColumns(cells map[string]string) error {
	known := emptyRow().places()
	for _, column := range slices.Sorted(maps.Keys(cells)) {
		isNumber := strings.Contains(column, ".") && !slices.Contains(draftCounts[:], column)
		if isNumber && known[column] == nil {
			return fmt.Errorf("column %q is unknown: another version of pinn wrote it, export the "+
				"table again or use the Go package of that version", column)
		}
	}
	_, drafts := cells[draftCounts[0]]
	var missing []string
	for column := range known {
		wanted := isNeeded(column) || drafts && strings.HasPrefix(column, "draft_cost.")
		if _, found := cells[column]; wanted && !found {
			missing = append(missing, column)
		}
	}
	if _, found := cells[graphSizes]; !found {
		missing = append(missing, graphSizes)
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("columns are missing: %s; export the table again with this version of pinn",
			strings.Join(firstFew(missing), ", "))
	}
	return nil
}
