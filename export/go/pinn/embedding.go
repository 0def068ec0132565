package pinn

import (
	"math"
	"strings"
)

// Embedding holds the physical descriptors of a deployment, which the network reads, and the
// logarithms of its datasheet rates relative to an H100 SXM; Python's pinn.physics.descriptors
// defines each. No name of a model or GPU is in it.
type Embedding struct {
	Descriptors map[string]float64
	Rates       map[string]float64
}

// Embed works the embedding of a deployment out.
func (d *Deployment) Embed() Embedding {
	e := Embedding{map[string]float64{}, map[string]float64{}}
	d.embedShapes(e.Descriptors)
	d.embedExperts(e.Descriptors)
	d.embedFormats(e.Descriptors)
	g, v := d.gpu, e.Descriptors
	v["sm_count"], v["l2_bytes"] = math.Log2(g.SMCount), math.Log2(g.L2Bytes)
	v["compute_capability"], v["nvlink"] = g.ComputeCapability, truth(g.HasNVLink)
	rates := [...]float64{g.MemoryBandwidth, g.PeakFlop["bf16"], g.LinkBandwidth}
	for i, name := range rateNames {
		e.Rates[name] = math.Log(rates[i]) - math.Log(referenceRates[i])
	}
	return e
}

func (d *Deployment) embedShapes(v map[string]float64) {
	m, tp := d.model, float64(d.recipe.tensorParallel)
	most := &m.LayerGroups[0]
	windowed := int64(0)
	for i := range m.LayerGroups {
		g := &m.LayerGroups[i]
		if g.Count > most.Count {
			most = g
		}
		if g.Attention.WindowTokens > 0 {
			windowed += g.Count
		}
	}
	a := &most.Attention
	v["layers"], v["hidden_size"] = math.Log2(m.layers()), width(float64(m.HiddenSize))
	v["head_width"] = width(float64(m.VocabSize) / tp)
	v["heads"] = math.Log2(float64(a.Heads) / tp)
	v["kv_heads"] = math.Log2(max(float64(a.keyHeads())/tp, 1))
	v["head_dim"] = math.Log2(float64(a.queryDim()))
	v["latent_attention"] = truth(a.latent())
	v["full_width_norm"] = truth(a.QKNormFullWidth)
	v["windowed_share"] = float64(windowed) / m.layers()
	v["window_tokens"] = width(float64(m.window()))
	v["tensor_parallel"] = math.Log2(tp)
	v["data_parallel"] = math.Log2(float64(d.ranks()) / tp)
	matmuls := d.denseMatmuls()
	v["qkv_width"] = width(largestSide(matmuls, false, "qkv_proj", "q_b_proj", "q_proj"))
	v["output_width"] = width(largestSide(matmuls, true, "o_proj"))
	v["dense_ffn_width"] = width(largestSide(matmuls, false, "gate_up_proj", "down_proj"))
	v["shared_ffn_width"] = width(largestSide(matmuls, false, "shared_gate_up_proj"))
}

// largestSide is the largest output width, or input width, of the matrices of some names.
func largestSide(matmuls []matmul, input bool, names ...string) float64 {
	most := int64(0)
	for _, m := range matmuls {
		for _, name := range names {
			if m.name != name {
				continue
			}
			if input {
				most = max(most, m.k)
			} else {
				most = max(most, m.n)
			}
		}
	}
	return float64(most)
}

func (d *Deployment) embedExperts(v map[string]float64) {
	moe, layers := d.model.moe()
	v["moe_share"] = layers / d.model.layers()
	v["local_experts"], v["top_k"], v["expert_share"] = 0, 0, 0
	v["expert_width"], v["expert_parallel"] = 0, 0
	kernels := d.expertKernels()
	v["expert_cutlass"] = truth(kernels == cutlassKernels)
	v["expert_triton"] = truth(kernels == tritonKernels)
	if moe == nil {
		return
	}
	spread, experts, topK := d.recipe.expertParallel, float64(moe.Experts), float64(moe.TopK)
	v["top_k"], v["expert_share"] = math.Log2(1+topK), math.Log2(topK/experts)
	v["local_experts"] = math.Log2(1 + experts/float64(spread))
	v["expert_width"] = width(float64(moe.Width) / float64(d.ranks()/spread))
	v["expert_parallel"] = math.Log2(float64(spread))
}

func (d *Deployment) embedFormats(v map[string]float64) {
	formats := d.model.Precisions
	attention, dense := d.formats[formats.Attention], d.formats[formats.DenseFFN]
	experts, expertFormat := dense, d.formats[d.expertKernelFormat()]
	moe, _ := d.model.moe()
	if moe != nil {
		experts = expertFormat
	}
	for kind, format := range map[string]Precision{
		"attention": attention, "dense": dense, "expert": experts,
	} {
		v[kind+"_bytes"] = math.Log2(format.BytesPerWeight)
		v[kind+"_native"] = truth(format.Math != "bf16" && d.gpu.PeakFlop[format.Math] > 0)
	}
	v["expert_mx_scales"] = truth(moe != nil && strings.HasPrefix(expertFormat.Name, "mx"))
	v["block_scales"] = truth(
		strings.Contains(expertFormat.Name, "block") || strings.Contains(dense.Name, "block"))
	v["static_scales"] = truth(dense.staticActivations())
	v["kv_bytes"] = math.Log2(d.kv.BytesPerWeight)
}
