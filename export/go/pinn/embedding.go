package pinn

import (
	"maps"
	"math"
	"strings"
)

// Embedding holds the physical descriptors of a deployment, which the network reads, and the
// logarithms of its datasheet rates relative to an H100 SXM; Python's pinn.surrogate.featurizer
// defines each. No name of a model or GPU is in it.
type Embedding struct {
	Descriptors map[string]float64
	Rates       map[string]float64
}

// Embed works the embedding of a deployment out.
func (d *Deployment) Embed() Embedding {
	g, v := d.gpu, maps.Clone(d.shard.Descriptors)
	if v == nil {
		v = map[string]float64{}
	}
	d.embedExperts(v)
	d.embedFormats(v)
	v["data_parallel"] = math.Log2(float64(d.recipe.dataParallel))
	v["sm_count"], v["l2_bytes"] = math.Log2(g.SMCount), math.Log2(g.L2Bytes)
	v["compute_capability"], v["nvlink"] = g.ComputeCapability, truth(g.HasNvlink)
	e := Embedding{v, map[string]float64{}}
	rates := [...]float64{
		g.MemoryBandwidthBytesPerS, g.PeakFlopPerS["bf16"], g.LinkBandwidthBytesPerS,
	}
	for i, name := range rateNames {
		e.Rates[name] = math.Log(rates[i]) - math.Log(referenceRates[i])
	}
	return e
}

func (d *Deployment) embedExperts(v map[string]float64) {
	kernels := d.expertKernels()
	v["expert_cutlass"] = truth(kernels == cutlassKernels)
	v["expert_triton"] = truth(kernels == tritonKernels)
	v["local_experts"], v["expert_width"], v["expert_parallel"] = 0, 0, 0
	if e := d.layers.Experts; e != nil {
		spread := float64(d.recipe.expertParallel)
		v["local_experts"] = math.Log2(1 + float64(e.Experts)/spread)
		v["expert_width"] = math.Log2(1 + float64(e.Width)/float64(d.ranks()/d.recipe.expertParallel)/64)
		v["expert_parallel"] = math.Log2(spread)
	}
}

func (d *Deployment) embedFormats(v map[string]float64) {
	formats := d.layers.Precisions
	attention, dense := d.formats[formats.Attention], d.formats[formats.DenseFFN]
	experts, expertFormat := dense, d.formats[d.expertKernelFormat()]
	routed := d.layers.Experts != nil
	if routed {
		experts = expertFormat
	}
	for kind, format := range map[string]Precision{
		"attention": attention, "dense": dense, "expert": experts,
	} {
		v[kind+"_bytes"] = math.Log2(format.BytesPerWeight)
		v[kind+"_native"] = truth(format.Math != "bf16" && d.gpu.PeakFlopPerS[format.Math] > 0)
	}
	v["expert_mx_scales"] = truth(routed && strings.HasPrefix(expertFormat.Name, "mx"))
	v["block_scales"] = truth(
		strings.Contains(expertFormat.Name, "block") || strings.Contains(dense.Name, "block"))
	v["static_scales"] = truth(dense.staticActivations())
	v["kv_bytes"] = math.Log2(d.kv.BytesPerWeight)
}
