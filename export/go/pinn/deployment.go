package pinn

import (
	"fmt"
	"strings"
)

// Deployment is a model on GPUs under an engine configuration.
type Deployment struct {
	model   *ModelSpec
	layers  *Layers
	shard   Shard
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
	shard, err := m.Layers.shard(m.Name, runs.tensorParallel)
	if err != nil {
		return nil, err
	}
	d := &Deployment{model: m, layers: &m.Layers, shard: shard, gpu: g, formats: s.Precisions, serving: serving, recipe: runs}
	for _, step := range []func() error{d.readCacheFormat, d.readSampling, d.check} {
		if err := step(); err != nil {
			return nil, err
		}
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
	experts, spread := d.layers.Experts, d.recipe.expertParallel
	switch {
	case experts == nil && (d.serving.EnableExpertParallel || spread > 1):
		return fmt.Errorf("enable_expert_parallel needs a model with experts and %s has none",
			d.model.Name)
	case experts != nil && spread > experts.Experts:
		return fmt.Errorf("expert parallelism over %d GPUs exceeds the %d experts of %s",
			spread, experts.Experts, d.model.Name)
	case float64(d.serving.PipelineParallelSize) > d.shard.Facts.Layers:
		return fmt.Errorf("pipeline_parallel_size %d exceeds the %v layers of %s",
			d.serving.PipelineParallelSize, d.shard.Facts.Layers, d.model.Name)
	}
	return nil
}

// ranks over which the experts are spread or cut.
func (d *Deployment) ranks() int64 { return d.recipe.tensorParallel * d.recipe.dataParallel }
