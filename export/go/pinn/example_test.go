package pinn_test

import (
	"fmt"
	"log"

	"example.com/pinn/export/go/pinn"
)

// A table gives the latency model of a configuration that it holds.
func Example() {
	table, err := pinn.LoadTable("testdata/table.json")
	if err != nil {
		log.Fatal(err)
	}
	row, err := table.Find(pinn.Key{Model: "CodeLlama-34b-hf", GPU: "H100", TensorParallelSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	model, err := pinn.NewModel(row)
	if err != nil {
		log.Fatal(err)
	}
	small := []pinn.Request{{ProgressIndex: 700, NumNewTokens: 1, InputLen: 547}}
	large := append(small, pinn.Request{ProgressIndex: 0, NumNewTokens: 2048, InputLen: 2048})
	fmt.Println("empty step:", model.StepTime(nil), "us")
	fmt.Println("a long prompt beside a decode takes longer:",
		model.StepTime(large) > model.StepTime(small))
	// Output:
	// empty step: 1 us
	// a long prompt beside a decode takes longer: true
}
