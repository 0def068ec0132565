package pinn_test

import (
	"fmt"
	"log"
	"os"

	"example.com/pinn/export/go/pinn"
)

// A table gives the latency model of a configuration that it holds.
func Example() {
	table, err := pinn.LoadTable("testdata/table.json")
	if err != nil {
		log.Fatal(err)
	}
	row, err := table.Find(map[string]string{
		"model": "codellama/CodeLlama-34b-hf", "gpu": "H100-SXM", "tensor_parallel_size": "2",
	})
	if err != nil {
		log.Fatal(err)
	}
	model, err := pinn.NewModel(row)
	if err != nil {
		log.Fatal(err)
	}
	small := []*pinn.Request{{ProgressIndex: 700, NumNewTokens: 1, InputLen: 547}}
	large := append(small, &pinn.Request{ProgressIndex: 0, NumNewTokens: 2048, InputLen: 2048})
	fmt.Println("empty step:", model.StepTime(nil), "us")
	fmt.Println("a long prompt beside a decode takes longer:",
		model.StepTime(large) > model.StepTime(small))
	// Output:
	// empty step: 1 us
	// a long prompt beside a decode takes longer: true
}

// A checkpoint gives a latency model of any model on any GPU.
func ExampleNetwork() {
	network, err := pinn.LoadNetwork("../../../checkpoints/pinn.safetensors")
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.Open("testdata/specs.json")
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	specs, err := pinn.ReadSpecs(file)
	if err != nil {
		log.Fatal(err)
	}
	batch := []*pinn.Request{{ProgressIndex: 700, NumNewTokens: 1, InputLen: 547}}
	var times []int64
	for _, gpu := range []string{"L40S", "H200-SXM"} {
		deployment, err := specs.Deploy("Qwen/Qwen3-30B-A3B", gpu, pinn.Serving{TensorParallelSize: 2})
		if err != nil {
			log.Fatal(err)
		}
		row, err := network.Row(deployment)
		if err != nil {
			log.Fatal(err)
		}
		model, err := pinn.NewModel(row)
		if err != nil {
			log.Fatal(err)
		}
		times = append(times, model.StepTime(batch))
	}
	fmt.Println("the H200 is faster:", times[1] < times[0])
	// Output: the H200 is faster: true
}
