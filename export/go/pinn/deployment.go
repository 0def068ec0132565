package pinn

import (
	"fmt"
	"strings"
)

// Deployment is a model on GPUs under an engine configuration.
type Deployment struct {
	model   *ModelSpec
	gpu     *GPU
	formats map[string]Precision
	serving Serving
	recipe  recipe
	kv      Precision
	sampled Sampling
	drafts  *Drafts
}

// Deploy puts a model on a GPU by their names.
//
// It fails where one is unknown or the parallel sizes do not divide the model.
func (s *Specs) Deploy(model, gpu string, serving Serving) (*Deployment, error) {
	m, err := s.Model(model)
	if err != nil {
		return nil, err
	}
	g, err := s.GPU(gpu)
	if err != nil {
		return nil, err
	}
	for _, size := range []*int64{
		&serving.TensorParallelSize, &serving.PipelineParallelSize, &serving.DataParallelSize,
	} {
		if *size == 0 {
			*size = 1
		}
		if *size < 1 || *size > 1<<16 {
			return nil, fmt.Errorf("a parallel size must lie in [1, 65536], got %d", *size)
		}
	}
	if serving.MaxModelLen == 0 {
		serving.MaxModelLen = m.MaxPosition
	}
	if serving.MaxModelLen < 1 || !usable(serving.CPUOffloadGB) {
		return nil, fmt.Errorf("max_model_len %d must be positive and cpu_offload_gb %v not negative",
			serving.MaxModelLen, serving.CPUOffloadGB)
	}
	runs, serving, err := serving.resolve(g, m.ModelType)
	if err != nil {
		return nil, err
	}
	d := &Deployment{model: m, gpu: g, formats: s.Precisions, serving: serving, recipe: runs}
	if err := d.readCacheFormat(); err != nil {
		return nil, err
	}
	if err := d.readSampling(); err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	d.drafts, err = s.drafts(d)
	return d, err
}

func (d *Deployment) readCacheFormat() error {
	name := d.serving.KVCacheDtype
	switch {
	case name == "" || name == "auto":
		name = d.model.KVCachePrecision
	case strings.HasPrefix(name, "fp8"):
		name = "fp8"
	}
	kv, known := d.formats[name]
	if !known {
		return fmt.Errorf("kv_cache_dtype %q is not among the file's precisions", name)
	}
	d.kv = kv
	return nil
}

func (d *Deployment) readSampling() error {
	switch d.serving.GenerationConfig {
	case "", "auto":
		d.sampled = d.model.Sampling
	case "vllm":
		d.sampled = DefaultSampling()
	default:
		return fmt.Errorf("generation_config %q is unknown: use auto, or vllm",
			d.serving.GenerationConfig)
	}
	found, err := d.sampled.overridden(d.serving.OverrideGenerationConfig)
	d.sampled = found
	return err
}

func (d *Deployment) check() error {
	asked := d.serving.EnableExpertParallel || d.recipe.expertParallel > 1
	if moe, _ := d.model.moe(); moe == nil && asked {
		return fmt.Errorf("enable_expert_parallel needs a model with experts and %s has none",
			d.model.Name)
	}
	if err := d.checkHeads(); err != nil {
		return err
	}
	if moe, _ := d.model.moe(); moe != nil && d.recipe.expertParallel > moe.Experts {
		return fmt.Errorf("expert parallelism over %d GPUs exceeds the %d experts of %s",
			d.recipe.expertParallel, moe.Experts, d.model.Name)
	}
	if float64(d.serving.PipelineParallelSize) > d.model.layers() {
		return fmt.Errorf("pipeline_parallel_size %d exceeds the %v layers of %s",
			d.serving.PipelineParallelSize, d.model.layers(), d.model.Name)
	}
	return nil
}

func (d *Deployment) checkHeads() error {
	tp := d.recipe.tensorParallel
	for _, g := range d.model.LayerGroups {
		a := g.Attention
		if a.Heads%tp != 0 {
			return fmt.Errorf("tensor_parallel_size %d does not divide the %d attention heads of %s",
				tp, a.Heads, d.model.Name)
		}
		if !a.latent() && a.KVHeads%tp != 0 && tp%a.KVHeads != 0 {
			return fmt.Errorf("tensor_parallel_size %d neither divides nor is a multiple of the %d "+
				"KV heads of %s", tp, a.KVHeads, d.model.Name)
		}
	}
	return nil
}

// ranks over which the experts are spread or cut.
func (d *Deployment) ranks() int64 {
	return d.recipe.tensorParallel * d.recipe.dataParallel
}

// matmul is a weight matrix on one GPU, as Python's pinn.physics.layer_work lists them.
type matmul struct {
	name        string
	n, k, count int64
	format      string
	perSequence bool
}

func (m *matmul) weights() float64 { return float64(m.count) * float64(m.n) * float64(m.k) }

// denseMatmuls lists every multiplication but the routed experts'.
func (d *Deployment) denseMatmuls() []matmul {
	tp, hidden, formats := d.recipe.tensorParallel, d.model.HiddenSize, d.model.Precisions
	var found []matmul
	add := func(name string, n, k, count int64, format string) {
		found = append(found, matmul{name, n, k, count, format, false})
	}
	mlp := func(prefix string, width, gates, count int64, format string) {
		local := ceil(width, tp)
		add(prefix+"gate_up_proj", (1+gates)*local, hidden, count, format)
		add(prefix+"down_proj", hidden, local, count, format)
	}
	for _, g := range d.model.LayerGroups {
		d.attentionMatmuls(&g, add)
		if !g.FFN.moe() {
			mlp("", g.FFN.Width, g.FFN.gates(), g.Count, formats.DenseFFN)
			continue
		}
		add("router", g.FFN.Experts, hidden, g.Count, "bf16")
		if g.FFN.SharedWidth > 0 {
			mlp("shared_", g.FFN.SharedWidth, g.FFN.gates(), g.Count, formats.SharedExperts)
		}
	}
	head := matmul{"lm_head", ceil(d.model.VocabSize, tp), hidden, 1, formats.LMHead, true}
	return append(found, head)
}

func (d *Deployment) attentionMatmuls(g *LayerGroup, add func(string, int64, int64, int64, string)) {
	a, tp, hidden := &g.Attention, d.recipe.tensorParallel, d.model.HiddenSize
	heads, format := a.Heads/tp, d.model.Precisions.Attention
	if !a.latent() {
		add("qkv_proj", (heads+2*max(a.KVHeads/tp, 1))*a.HeadDim, hidden, g.Count, format)
		add("o_proj", hidden, heads*a.HeadDim, g.Count, format)
		return
	}
	queries := heads * a.queryDim()
	if a.QLoraRank == 0 {
		add("q_proj", queries, hidden, g.Count, format)
		add("kv_a_proj", a.latentWidth(), hidden, g.Count, format)
	} else {
		add("fused_qkv_a_proj", a.QLoraRank+a.latentWidth(), hidden, g.Count, format)
		add("q_b_proj", queries, a.QLoraRank, g.Count, format)
	}
	add("kv_b_proj", heads*(a.QKNopeHeadDim+a.VHeadDim), a.KVLoraRank, g.Count, format)
	add("o_proj", hidden, heads*a.VHeadDim, g.Count, format)
}

// ceil divides and rounds up.
func ceil(a, b int64) int64 { return (a + b - 1) / b }
