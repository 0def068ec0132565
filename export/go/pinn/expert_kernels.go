package pinn

import (
	"fmt"
	"strings"
)

// Kernels of routed experts, as Python's pinn.specs.expert_kernels: the engine's own choice, or
// others that are timed apart from it.
const (
	ownKernels     = "auto"
	tritonKernels  = "triton"
	cutlassKernels = "cutlass"
	marlinKernels  = "marlin"

	// marlinFormat is the format whose experts Marlin was timed with.
	marlinFormat = "int4_wo"
)

// moeKernels are those that a flag names, and whether one does; else the release's own.
func (s Serving) moeKernels(g placed) (string, bool, error) {
	name := s.MoeBackend
	if name == "" || strings.EqualFold(name, "auto") {
		found, err := s.lookUp("moe_backend", g)
		if err != nil {
			return "", false, err
		}
		name = found
	}
	var known []string
	for _, kernels := range expertKernelNames {
		if strings.EqualFold(name, kernels.name) {
			return kernels.timedAs, !strings.EqualFold(name, "auto"), nil
		}
		known = append(known, kernels.name)
	}
	return "", false, fmt.Errorf("moe_backend %q is none of %s: give one of them or leave it out",
		name, strings.Join(known, ", "))
}

// expertKernels are those of the recipe where they take another time than the engine's own.
func (d *Deployment) expertKernels() string {
	moe, _ := d.model.moe()
	kernels, chip := d.recipe.moeKernels, d.gpu.ComputeCapability
	if !d.recipe.moeNamed && moe != nil {
		kernels = d.releaseKernels()
	}
	hopper, blackwell := chip == 9, 10 <= chip && chip < 11
	switch {
	case moe == nil:
		return ownKernels
	case d.model.Precisions.Experts == "mxfp4":
		if kernels == marlinKernels && (hopper || blackwell) {
			return kernels
		}
	case d.model.Precisions.Experts == "fp8_block":
		cutlass := kernels == cutlassKernels && hopper && d.recipe.expertParallel == 1
		if cutlass || kernels == tritonKernels && blackwell {
			return kernels
		}
	}
	return ownKernels
}

// releaseKernels are those that the release picks, as with_release_kernels of Python's
// pinn.specs.expert_kernels.
func (d *Deployment) releaseKernels() string {
	s, chip, spread := d.serving, d.gpu.ComputeCapability, "tp"
	if s.Engine == "" {
		s.Engine = "vllm"
	}
	if s.EngineVersion == "" {
		s.EngineVersion = s.reference()
	}
	if d.recipe.expertParallel > 1 {
		spread = "ep"
		if d.recipe.dataParallel > 1 {
			spread = "dp"
		}
	}
	version := release(s.EngineVersion)
	for _, k := range releaseKernels {
		if k.engine == s.Engine && k.format == d.model.Precisions.Experts &&
			(k.since == "" || !before(version, release(k.since))) &&
			(k.until == "" || before(version, release(k.until))) &&
			k.leastCapability <= chip && (k.belowCC == 0 || chip < k.belowCC) &&
			(k.spread == "" || strings.Contains(k.spread, spread)) {
			return k.timedAs
		}
	}
	return ownKernels
}

// expertKernelFormat is the format whose kernels multiply the experts.
func (d *Deployment) expertKernelFormat() string {
	if d.expertKernels() == marlinKernels {
		return marlinFormat
	}
	return d.model.Precisions.Experts
}

// mxfp4Kernels are those of experts in mxfp4 on Hopper where an engine does not run vLLM's, as
// MXFP4_KERNELS of Python's pinn.specs.own_kernels.
var mxfp4Kernels = map[string]string{"sglang": "fused_triton", "trtllm": "torch_flow"}

// mxfp4Times are the times of reading and of computing experts by those kernels relative to those
// that vLLM runs, as EXPERT_TIMES of Python's pinn.specs.own_kernels.
var mxfp4Times = map[string][2]float64{"torch_flow": {1.16, 1.61}, "fused_triton": {1.47, 1.77}}

// expertTimes are those of reading and of computing routed experts relative to vLLM's kernels.
func (d *Deployment) expertTimes() (reading, computing float64) {
	moe, _ := d.model.moe()
	times, own := mxfp4Times[d.recipe.mxfp4Kernels]
	hopper := d.gpu.ComputeCapability == 9
	if moe == nil || !own || !hopper || d.model.Precisions.Experts != "mxfp4" ||
		d.expertKernels() != ownKernels {
		return 1, 1
	}
	return times[0], times[1]
}
