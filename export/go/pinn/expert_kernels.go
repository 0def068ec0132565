package pinn

import (
	"maps"
	"slices"
	"strings"
)

// namedKernels are those that a flag names, and whether one does; else the release's own.
func (s *resolver) namedKernels() (string, bool) {
	name := strings.ToLower(s.MoeBackend)
	if name == "" || name == ownKernels {
		name = strings.ToLower(s.lookUp("moe_backend"))
	}
	timedAs, known := expertKernelNames[name]
	if !known {
		s.refuse("moe_backend %q is none of %s: give one of them or leave it out", name,
			strings.Join(slices.Sorted(maps.Keys(expertKernelNames)), ", "))
	}
	return timedAs, name != ownKernels
}

// expertKernels are those of the recipe where they take another time than the engine's own.
func (d *Deployment) expertKernels() string {
	kernels, chip := d.recipe.moeKernels, d.gpu.ComputeCapability
	if !d.recipe.moeNamed && d.layers.Experts != nil {
		kernels = d.releaseKernels()
	}
	hopper, blackwell := chip == 9, 10 <= chip && chip < 11
	switch {
	case d.layers.Experts == nil:
		return ownKernels
	case d.layers.Precisions.Experts == "mxfp4":
		if kernels == marlinKernels && (hopper || blackwell) {
			return kernels
		}
	case d.layers.Precisions.Experts == "fp8_block":
		cutlass := kernels == cutlassKernels && hopper && d.recipe.expertParallel == 1
		if cutlass || kernels == tritonKernels && blackwell {
			return kernels
		}
	}
	return ownKernels
}

// releaseKernels are those that the release picks, as with_release_kernels of Python's
// pinn.engines.kernel_choice.
func (d *Deployment) releaseKernels() string {
	chip, spread, version := d.gpu.ComputeCapability, "tp", release(d.serving.EngineVersion)
	if d.recipe.expertParallel > 1 {
		spread = "ep"
		if d.recipe.dataParallel > 1 {
			spread = "dp"
		}
	}
	for _, k := range releaseKernels {
		if k.hold(d.serving.Engine, version) && k.format == d.layers.Precisions.Experts &&
			within(chip, k.leastCapability, k.belowCC) &&
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
	return d.layers.Precisions.Experts
}
