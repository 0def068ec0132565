package pinn

import (
	"math"
	"strings"
	"testing"
)

const minimax = "MiniMaxAI/MiniMax-M2.5"

func TestKernelsOfTheExpertsAreThoseOfTheFlagOrTheRelease(t *testing.T) {
	specs := goldenSpecs(t)
	for _, c := range []struct {
		model, gpu string
		serving    Serving
		want       string
	}{
		{minimax, "H200", Serving{}, "auto"}, // Triton's
		{minimax, "H200", Serving{EngineVersion: "0.15.1"}, "cutlass"},
		{minimax, "B300", Serving{EngineVersion: "0.11.0"}, "triton"},
		{minimax, "B300", Serving{EngineVersion: "0.11.0", MoeBackend: "flashinfer_trtllm"}, "auto"},
		{minimax, "H200", Serving{EngineVersion: "0.14.1"}, "auto"},
		{minimax, "H200", Serving{EngineVersion: "0.17.0"}, "auto"},
		{minimax, "H200", Serving{MoeBackend: "triton"}, "auto"},
		{minimax, "H200", Serving{EngineVersion: "0.15.1", EnableExpertParallel: true}, "auto"},
		{minimax, "B200", Serving{}, "auto"},
		{minimax, "B200", Serving{MoeBackend: "Triton"}, "triton"},
		{minimax, "B200", Serving{MoeBackend: "triton", Engine: "sglang"}, "triton"},
		{minimax, "H200", Serving{Engine: "trtllm"}, "auto"},
		{"moonshotai/Kimi-K2.5", "B200", Serving{MoeBackend: "triton"}, "auto"}, // int4
		{"meta-llama/Llama-3.1-8B", "B200", Serving{MoeBackend: "triton"}, "auto"},
		{"openai/gpt-oss-120b", "H200", Serving{MoeBackend: "marlin"}, "auto"},
	} {
		c.serving.TensorParallelSize = 4
		d, err := specs.Deploy(c.model, c.gpu, c.serving)
		if err != nil {
			t.Fatal(err)
		}
		told := d.Embed().Descriptors
		for _, name := range []string{"cutlass", "triton"} {
			if got := told["expert_"+name]; got != truth(name == c.want) {
				t.Errorf("%s on %s %+v: expert_%s is %v", c.model, c.gpu, c.serving, name, got)
			}
		}
	}
}

func TestUnknownKernelsOfTheExpertsAreRefused(t *testing.T) {
	for _, model := range []string{minimax, "meta-llama/Llama-3.1-8B"} {
		_, err := goldenSpecs(t).Deploy(model, "H200", Serving{MoeBackend: "tritn"})
		if err == nil || !strings.Contains(err.Error(), `moe_backend "tritn" is none of aiter, `) {
			t.Errorf("%s: %v", model, err)
		}
	}
}

func TestMarlinMultipliesMxfp4ExpertsAsThoseOfFourBits(t *testing.T) {
	serving := Serving{TensorParallelSize: 4, MoeBackend: "marlin"}
	d, err := goldenSpecs(t).Deploy("openai/gpt-oss-120b", "H200", serving)
	if err != nil {
		t.Fatal(err)
	}
	told := d.Embed().Descriptors
	want := math.Log2(d.formats["int4_wo"].BytesPerWeight)
	if told["expert_bytes"] != want || told["expert_mx_scales"] != 0 {
		t.Errorf("expert_bytes %v, want %v; expert_mx_scales %v", told["expert_bytes"], want,
			told["expert_mx_scales"])
	}
}
