package pinn

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Tables and specs of every layout that was released load, or are refused with what to do.
func TestReleasedFilesLoadOrSayWhatToDo(t *testing.T) {
	remedy := regexp.MustCompile(`export .* again|export it again|use the Go package of`)
	for kind, read := range map[string]func(*os.File) (int, error){
		"tables": func(file *os.File) (int, error) {
			table, err := ReadTableCSV(file)
			if err != nil {
				return 0, err
			}
			return len(table.Rows), nil
		},
		"specs": func(file *os.File) (int, error) {
			specs, err := ReadSpecs(file)
			if err != nil {
				return 0, err
			}
			return len(specs.Models), nil
		},
	} {
		paths, err := filepath.Glob(filepath.Join("testdata", "released", kind, "*"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no released %s: %v", kind, err)
		}
		for _, path := range paths {
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			found, err := read(file)
			file.Close()
			switch {
			case err == nil && found != 1:
				t.Errorf("%s: %d rows or models", path, found)
			case err != nil && !remedy.MatchString(err.Error()):
				t.Errorf("%s: %v", path, err)
			case err != nil:
				t.Logf("%s: %v", path, err)
			}
		}
	}
}
