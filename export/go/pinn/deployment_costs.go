package pinn

const (
	gib              = 1 << 30
	activationPasses = 12.0
	activationBytes  = 2.0
)

// Costs of one unit of work at datasheet rates, as Python's pinn.physics.costs.
func (d *Deployment) Costs() Costs {
	var c Costs
	tp, pp := float64(d.serving.TensorParallelSize), float64(d.serving.PipelineParallelSize)
	token := float64(d.model.HiddenSize) * activationBytes
	c.Layers = d.model.layers()
	_, c.MoeLayers = d.model.moe()
	c.ParallelLayers = c.Layers * truth(tp > 1)
	c.GraphTokens = float64(d.serving.graphTokens())
	c.SampledRequest = float64(d.model.VocabSize) * d.sampled.logitBytes() / d.gpu.MemoryBandwidth
	c.ActivationToken = c.Layers * activationPasses * token / d.gpu.MemoryBandwidth
	c.PipelineToken = (pp - 1) * token / d.gpu.LinkBandwidth
	d.denseCosts(&c)
	d.expertCosts(&c, token)
	// No more than the weights of this GPU's stage can lie in host memory.
	held := (c.GemmWeights + c.Experts*c.ExpertRead) * d.gpu.MemoryBandwidth / pp
	c.Offload = min(d.serving.CPUOffloadGB*gib, held) / d.gpu.PCIeBandwidth
	d.attentionCosts(&c, tp, token)
	return c
}

func (d *Deployment) denseCosts(c *Costs) {
	bytes, quantized := 0.0, false
	for _, m := range d.denseMatmuls() {
		format := d.formats[m.format]
		bytes += m.weights() * format.BytesPerWeight
		quantized = quantized || format.DynamicActivations
		seconds := 2 * m.weights() / d.gpu.matmulFlop(format)
		if m.perSequence {
			c.HeadSequence += seconds
		} else {
			c.GemmToken += seconds
		}
	}
	c.GemmWeights = bytes / d.gpu.MemoryBandwidth
	c.QuantizedLayers = c.Layers * truth(quantized)
}

func (d *Deployment) expertCosts(c *Costs, token float64) {
	moe, layers := d.model.moe()
	c.ExpertReplicas = float64(d.serving.DataParallelSize)
	if moe == nil {
		return
	}
	ranks := d.ranks()
	spread, cut := int64(1), ranks
	if d.serving.EnableExpertParallel {
		spread, cut = ranks, 1
	}
	hidden, weights := float64(d.model.HiddenSize), d.formats[d.model.Precisions.Experts]
	one := float64((2+moe.gates())*ceil(moe.Width, cut)) * hidden * layers
	copies := float64(moe.TopK) / float64(spread)
	passes := copies * (2*hidden + 3*float64(moe.Width)/float64(cut)) * layers
	c.Experts = float64(moe.Experts) / float64(spread)
	c.ExpertShare = float64(moe.TopK) / float64(moe.Experts)
	c.ExpertRead = one * weights.BytesPerWeight / d.gpu.MemoryBandwidth
	c.ExpertToken = 2 * one * copies / d.gpu.matmulFlop(weights)
	c.ExpertActivationToken = passes * activationBytes / d.gpu.MemoryBandwidth
	if d.serving.DataParallelSize == 1 {
		return
	}
	sent := float64(ranks)
	if d.serving.EnableExpertParallel {
		sent = float64(min(moe.TopK, ranks))
	}
	remote := float64(ranks-1) / float64(ranks)
	c.ExchangeToken = layers * 2 * sent * remote * token / d.gpu.LinkBandwidth
}

// attentionCosts adds up layers with a window apart from those without.
func (d *Deployment) attentionCosts(c *Costs, tp, token float64) {
	var read, decode, prefill [2]float64
	tokenBytes, reduces := 0.0, 1.0
	for i := range d.model.LayerGroups {
		g := &d.model.LayerGroups[i]
		a, count := &g.Attention, float64(g.Count)
		kind := 0
		if a.WindowTokens > 0 {
			kind = 1
		}
		heads := float64(a.Heads / d.serving.TensorParallelSize)
		kv, decodeWidth, prefillWidth := a.widths(tp)
		read[kind] += count * kv
		decode[kind] += 2 * heads * count * decodeWidth
		prefill[kind] += 2 * heads * count * prefillWidth
		tokenBytes += count * 2 * heads * float64(a.queryDim()) * activationBytes
		reduces += (2 + truth(!a.latent() && a.QKNormFullWidth)) * count
	}
	bandwidth, bf16 := d.gpu.MemoryBandwidth, d.gpu.PeakFlop["bf16"]
	c.KVRead = read[0] * d.kv.BytesPerWeight / bandwidth
	c.WindowedKVRead = read[1] * d.kv.BytesPerWeight / bandwidth
	c.DecodePair, c.WindowedDecodePair = decode[0]/bf16, decode[1]/bf16
	c.PrefillPair, c.WindowedPrefillPair = prefill[0]/bf16, prefill[1]/bf16
	c.PrefillToken = tokenBytes / bandwidth
	c.AllReduces = reduces * truth(tp > 1)
	c.AllReduceTokenBytes = token
	c.AllReduceToken = reduces * token * 2 * (tp - 1) / tp / d.gpu.LinkBandwidth
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
