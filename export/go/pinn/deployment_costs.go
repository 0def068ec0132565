package pinn

import "strings"

const activationBytes = 2.0

// Costs of one unit of work at datasheet rates, as Python's pinn.physics.costs.
func (d *Deployment) Costs() Costs {
	w := d.facts()
	return w.costs()
}

func (d *Deployment) facts() costFacts {
	_, moeLayers := d.model.moe()
	w := costFacts{
		layers:               d.model.layers(),
		moeLayers:            moeLayers,
		hiddenSize:           float64(d.model.HiddenSize),
		vocabSize:            float64(d.model.VocabSize),
		tensorParallelSize:   float64(d.recipe.tensorParallel),
		dataParallelSize:     float64(d.recipe.dataParallel),
		pipelineParallelSize: float64(d.serving.PipelineParallelSize),
		graphTokens:          float64(d.recipe.graphTokens),
		graphRequests:        float64(d.recipe.graphRequests),
		cpuOffloadGb:         d.serving.CPUOffloadGB,
		memoryBytesPerS:      d.gpu.MemoryBandwidth,
		linkBytesPerS:        d.gpu.LinkBandwidth,
		pcieBytesPerS:        d.gpu.PCIeBandwidth,
		bf16FlopPerS:         d.gpu.PeakFlop["bf16"],
		fp8FlopPerS:          d.gpu.matmulFlop(Precision{Math: "fp8"}),
		kvElementBytes:       d.kv.BytesPerWeight,
	}
	w.logitBytes, w.samplerLaunch, w.samplerLogit = d.sampled.time()
	w.fasterAllReduce = 1 - d.recipe.allReduceLatency
	w.latentLaunches = d.recipe.latentLaunches
	if d.recipe.tensorParallel > 1 {
		w.fusedAllReduce = truth(d.recipe.fusedAllReduce)
		w.fusedQuantization = truth(d.recipe.fusedQuantization)
	}
	d.denseFacts(&w)
	d.expertFacts(&w)
	d.attentionFacts(&w)
	w.decodeAttentionTime = 1
	if w.latentLayers == 0 {
		w.decodeAttentionTime = d.recipe.decodeAttentionTime(d.gpu, d.kv)
	}
	return w
}

// moved are the 16-bit elements that the kernels around a multiplication read or write per token, as
// Python's pinn.physics.layer_work counts them.
func (m *matmul) moved(format Precision) float64 {
	if m.perSequence {
		return 0
	}
	elements := 2 * float64(m.n)
	switch name := m.name; {
	case strings.HasSuffix(name, "o_proj"), strings.HasSuffix(name, "down_proj"), name == "router":
		elements = 0
	case strings.HasSuffix(name, "gate_up_proj"):
		elements = 1.5 * float64(m.n)
	}
	return elements - truth(format.staticActivations())*float64(m.k)/2
}

func (d *Deployment) denseFacts(w *costFacts) {
	w.smallKernelElements = 8 * d.model.layers() * w.hiddenSize
	for _, m := range d.denseMatmuls() {
		format := d.formats[m.format]
		w.denseWeightBytes += m.weights() * format.BytesPerWeight
		w.smallKernelElements += float64(m.count) * m.moved(format)
		w.quantized = max(w.quantized, truth(format.DynamicActivations))
		seconds := 2 * m.weights() / d.gpu.matmulFlop(format)
		if m.perSequence {
			w.headSequence += seconds
		} else {
			w.denseToken += seconds
		}
	}
}

func (d *Deployment) expertFacts(w *costFacts) {
	moe, layers := d.model.moe()
	ranks := d.ranks()
	spread := d.recipe.expertParallel
	cut := ranks / spread
	w.expertSpread, w.expertCut, w.expertFlopPerS = float64(spread), float64(cut), 1
	w.expertReadingTime, w.expertComputingTime = d.expertTimes()
	if moe == nil {
		return
	}
	weights := d.formats[d.model.Precisions.Experts]
	w.routedExperts, w.topK = float64(moe.Experts), float64(moe.TopK)
	w.expertWidth = float64(moe.Width)
	w.expertWeights = float64((2+moe.gates())*ceil(moe.Width, cut)) * w.hiddenSize * layers
	w.expertWeightBytes = weights.BytesPerWeight
	w.expertFlopPerS = d.gpu.matmulFlop(weights)
	if d.recipe.dataParallel == 1 {
		return
	}
	w.exchangeCopies = float64(ranks)
	if cut == 1 && !d.recipe.gathers {
		w.exchangeCopies = float64(min(moe.TopK, ranks))
	}
}

// attentionFacts adds up layers with a window apart from those without.
func (d *Deployment) attentionFacts(w *costFacts) {
	w.allReduces = 1
	for i := range d.model.LayerGroups {
		g := &d.model.LayerGroups[i]
		a, count := &g.Attention, float64(g.Count)
		read, decode, prefill := &w.kvWidth, &w.decodeFlop, &w.prefillFlop
		if a.WindowTokens > 0 {
			read, decode, prefill = &w.windowedKVWidth, &w.windowedDecodeFlop, &w.windowedPrefillFlop
		}
		heads := float64(a.Heads / d.recipe.tensorParallel)
		kv, decodeWidth, prefillWidth := a.widths(w.tensorParallelSize)
		*read += count * kv
		*decode += 2 * heads * count * decodeWidth
		*prefill += 2 * heads * count * prefillWidth
		w.prefillTokenBytes += count * 2 * heads * float64(a.queryDim()) * activationBytes
		w.latentLayers += truth(a.latent()) * count
		w.allReduces += (2 + truth(!a.latent() && a.QKNormFullWidth)) * count
	}
}

// gpuCacheTokens are those whose keys and values of one head in one layer fit the last-level cache.
func (d *Deployment) gpuCacheTokens() float64 {
	widest := int64(0)
	for i := range d.model.LayerGroups {
		a := &d.model.LayerGroups[i].Attention
		width := 2 * a.HeadDim
		if a.latent() {
			width = a.latentWidth()
		}
		widest = max(widest, width)
	}
	if widest == 0 {
		return 0
	}
	return d.gpu.L2Bytes / (float64(widest) * d.kv.BytesPerWeight)
}

// widths of one layer: cached elements per token, and elements per head that a decode and a prefill
// multiply for each key.
func (a *Attention) widths(tp float64) (kv, decode, prefill float64) {
	if a.latent() {
		kv = float64(a.latentWidth())
		return kv, kv + float64(a.KVLoraRank), float64(a.queryDim() + a.VHeadDim)
	}
	decode = 2 * float64(a.HeadDim)
	return 2 * max(float64(a.KVHeads)/tp, 1) * float64(a.HeadDim), decode, decode
}
