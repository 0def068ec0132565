package pinn

import "math"

// alwaysAGraph is far beyond any step: with graphs at all, a draft's pass is taken to be one.
const alwaysAGraph = 1e18

// drafts are what a deployment's flags ask for; nil where they ask for nothing.
func (s *Specs) drafts(d *Deployment) (*Drafts, error) {
	asked := d.recipe.speculation
	if asked.tokens == 0 {
		return nil, nil
	}
	acceptance, err := d.serving.acceptance(asked, s.DraftAcceptance)
	if err != nil {
		return nil, err
	}
	found := &Drafts{
		Tokens: asked.tokens, Passes: asked.passes, Branches: asked.branches, Acceptance: acceptance,
	}
	if asked.passes == 0 {
		return found, nil
	}
	layers, joined, err := s.draftLayers(d.model, asked)
	if err != nil {
		return nil, err
	}
	pass := *d
	pass.layers, pass.sampled = layers, DefaultSampling()
	pass.sampled.Temperature = 0
	if pass.shard, err = layers.shard("the draft", d.recipe.tensorParallel); err != nil {
		return nil, err
	}
	if asked.method == eagle3 {
		pass.narrow(eagle3Vocabulary)
	}
	c, hidden := pass.Costs(), pass.shard.Facts.HiddenSize
	projection := joined * hidden * hidden
	c.GemmWeights += projection * activationBytes / d.gpu.MemoryBandwidthBytesPerS
	c.GemmToken += 2 * projection / d.gpu.PeakFlopPerS["bf16"]
	if c.GraphTokens > 0 {
		c.GraphTokens = alwaysAGraph
	}
	c.Offload = 0
	found.Costs = c
	return found, nil
}

// draftLayers are what a pass of the draft runs through, and the hidden states that a projection joins
// before it, as Python's pinn.engines.deployment.
func (s *Specs) draftLayers(target *ModelSpec, asked speculation) (*Layers, float64, error) {
	published, err := s.Model(asked.draft)
	switch {
	case asked.method == draftModel && err != nil:
		return nil, 0, err
	case asked.method == draftModel:
		return &published.Layers, 0, nil
	case asked.method == mtp:
		return &target.MTP, 2, nil
	}
	layers, joined := &target.Eagle, 2.0
	if asked.draft != "" && err == nil {
		layers = &published.Layers
	}
	if asked.method == eagle3 {
		joined = 3
	}
	return layers, joined, nil
}

// narrow leaves no more of the vocabulary.
func (d *Deployment) narrow(vocabulary float64) {
	w, format := &d.shard.Facts, d.layers.Precisions.LMHead
	rows := func(words float64) float64 { return math.Ceil(words / float64(d.recipe.tensorParallel)) }
	left := min(w.VocabSize, vocabulary)
	gone := (rows(w.VocabSize) - rows(left)) * w.HiddenSize
	w.DenseWeightBytes -= gone * d.formats[format].BytesPerWeight
	w.VocabSize = left
	d.shard.HeadFlop = map[string]float64{format: 2 * rows(left) * w.HiddenSize}
}
