// Command onnx prints the step time of a batch from the two graphs of 'pinn export onnx', with
// onnxruntime. See README.md for what it needs.
//
//	go run . -library /path/to/libonnxruntime.so -graphs ../../onnx < inputs.json
//
// The inputs are one configuration and one batch:
//
//	{"descriptors": [...], "rates": [...], "features": [...]}
//
// in the order that the graphs' metadata (key "registry") names.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	ort "github.com/yalue/onnxruntime_go"
)

type inputs struct{ Descriptors, Rates, Features []float64 }

func main() {
	library := flag.String("library", "libonnxruntime.so", "shared library of onnxruntime")
	graphs := flag.String("graphs", "../../onnx", "folder of the two graphs")
	flag.Parse()
	var in inputs
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		log.Fatalf("inputs: %v", err)
	}
	ort.SetSharedLibraryPath(*library)
	if err := ort.InitializeEnvironment(); err != nil {
		log.Fatal(err)
	}
	defer ort.DestroyEnvironment()
	us, err := stepTime(*graphs, in)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(us, "us")
}

// stepTime runs the first graph for the configuration and the second for the batch.
func stepTime(graphs string, in inputs) (int64, error) {
	coefficients, err := run(filepath.Join(graphs, "coefficients.onnx"),
		[]string{"descriptors", "rates"}, []string{"alpha", "beta"}, in.Descriptors, in.Rates)
	if err != nil {
		return 0, err
	}
	beta := coefficients[1].(*ort.Tensor[float64]).GetData()
	steps, err := run(filepath.Join(graphs, "step_time.onnx"),
		[]string{"features", "beta"}, []string{"step_time_s", "step_time_us"}, in.Features, beta)
	if err != nil {
		return 0, err
	}
	return steps[1].(*ort.Tensor[int64]).GetData()[0], nil
}

// run runs a graph on single rows. A program that asks often keeps its sessions.
func run(path string, names, outputs []string, rows ...[]float64) ([]ort.Value, error) {
	session, err := ort.NewDynamicAdvancedSession(path, names, outputs, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer session.Destroy()
	var given []ort.Value
	for i, row := range rows {
		tensor, err := ort.NewTensor(ort.NewShape(1, int64(len(row))), row)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", names[i], err)
		}
		given = append(given, tensor)
	}
	found := make([]ort.Value, len(outputs)) // nil: onnxruntime allocates them
	return found, session.Run(given, found)
}
