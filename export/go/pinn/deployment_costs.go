package pinn

import (
	"maps"
	"slices"
)

const activationBytes = 2.0

// Costs of one unit of work at datasheet rates, as Python's pinn.physics.costs.
func (d *Deployment) Costs() Costs {
	w := d.shard.Facts
	w.TensorParallelSize = float64(d.recipe.tensorParallel)
	w.DataParallelSize = float64(d.recipe.dataParallel)
	w.PipelineParallelSize = float64(d.serving.PipelineParallelSize)
	w.GraphTokens, w.GraphRequests = float64(d.recipe.graphTokens), float64(d.recipe.graphRequests)
	w.CPUOffloadGb, w.KVElementBytes = d.serving.CPUOffloadGB, d.kv.BytesPerWeight
	w.MemoryBytesPerS = d.gpu.MemoryBandwidthBytesPerS
	w.LinkBytesPerS, w.PcieBytesPerS = d.gpu.LinkBandwidthBytesPerS, d.gpu.PcieBandwidthBytesPerS
	w.Bf16FlopPerS = d.gpu.PeakFlopPerS["bf16"]
	w.Fp8FlopPerS = d.gpu.matmulFlop(Precision{Math: "fp8"})
	w.DenseToken, w.HeadSequence = d.seconds(d.shard.TokenFlop), d.seconds(d.shard.HeadFlop)
	w.LogitBytes, w.SamplerLaunch, w.SamplerLogit = d.sampled.time()
	w.FasterAllReduce = 1 - d.recipe.allReduceLatency
	w.AllReduceMostBytes = d.recipe.allReduceMostBytes
	w.LatentLaunches, w.DecodeAttentionTime = d.recipe.latentLaunches, 1
	if w.LatentLayers == 0 {
		w.DecodeAttentionTime = d.recipe.decodeAttentionTime(d.gpu, d.kv)
	}
	if d.recipe.tensorParallel > 1 {
		w.FusedAllReduce = truth(d.recipe.fusedAllReduce)
		w.FusedQuantization = truth(d.recipe.fusedQuantization)
	}
	d.expertFacts(&w)
	return w.costs()
}

// seconds of operations by their number format.
func (d *Deployment) seconds(flop map[string]float64) (total float64) {
	for _, format := range slices.Sorted(maps.Keys(flop)) {
		total += flop[format] / d.gpu.matmulFlop(d.formats[format])
	}
	return total
}

func (d *Deployment) expertFacts(w *costFacts) {
	experts, ranks, spread := d.layers.Experts, d.ranks(), d.recipe.expertParallel
	cut := ranks / spread
	w.ExpertSpread, w.ExpertCut, w.ExpertFlopPerS = float64(spread), float64(cut), 1
	if experts == nil {
		return
	}
	weights := d.formats[d.layers.Precisions.Experts]
	w.RoutedExperts, w.TopK = float64(experts.Experts), float64(experts.TopK)
	w.ExpertWidth = float64(experts.Width)
	w.ExpertWeights = float64(experts.Matrices*ceil(experts.Width, cut)) *
		float64(experts.StreamWidth) * w.MoeLayers
	w.ExpertWeightBytes = weights.BytesPerWeight
	w.ExpertFlopPerS = d.gpu.matmulFlop(weights)
	if d.recipe.dataParallel == 1 {
		return
	}
	w.ExchangeCopies = float64(ranks)
	if cut == 1 && !d.recipe.gathers {
		w.ExchangeCopies = float64(min(experts.TopK, ranks))
	}
}

// gpuCacheTokens are those whose keys and values of one head in one layer fit the last-level cache.
func (d *Deployment) gpuCacheTokens() float64 {
	if d.model.HeadElements == 0 {
		return 0
	}
	return d.gpu.L2Bytes / (float64(d.model.HeadElements) * d.kv.BytesPerWeight)
}

// ceil divides and rounds up.
func ceil(a, b int64) int64 { return (a + b - 1) / b }
