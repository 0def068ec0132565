package pinn

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
	pass.model, pass.sampled = layers, DefaultSampling()
	pass.sampled.Temperature = 0
	if err := pass.checkHeads(); err != nil {
		return nil, err
	}
	c := pass.Costs()
	hidden := float64(layers.HiddenSize)
	projection := float64(joined) * hidden * hidden
	c.GemmWeights += projection * activationBytes / d.gpu.MemoryBandwidth
	c.GemmToken += 2 * projection / d.gpu.PeakFlop["bf16"]
	if c.GraphTokens > 0 {
		c.GraphTokens = alwaysAGraph
	}
	c.Offload = 0
	found.Costs = c
	return found, nil
}

// draftLayers are what a pass of the draft runs through, as a model, and the hidden states that a
// projection joins before it, as Python's pinn.engines.deployment.
func (s *Specs) draftLayers(target *ModelSpec, asked speculation) (*ModelSpec, int, error) {
	if asked.method == draftModel {
		found, err := s.Model(asked.draft)
		return found, 0, err
	}
	last := target.LayerGroups[len(target.LayerGroups)-1]
	last.Count = 1
	layers, joined := *target, 2
	if asked.method == mtp {
		layers.LayerGroups = []LayerGroup{last}
		return &layers, joined, nil
	}
	if found, err := s.Model(asked.draft); asked.draft != "" && err == nil {
		layers = *found
	} else {
		last.Attention.WindowTokens = 0
		if f := &last.FFN; f.moe() {
			*f = FFN{Kind: "dense", Width: f.TopK*f.Width + f.SharedWidth, Gated: true}
		}
		layers.LayerGroups = []LayerGroup{last}
		layers.Precisions = WeightFormats{"bf16", "bf16", "bf16", "bf16", "bf16"}
	}
	if asked.method == eagle3 {
		joined, layers.VocabSize = 3, min(layers.VocabSize, eagle3Vocabulary)
	}
	return &layers, joined, nil
}
