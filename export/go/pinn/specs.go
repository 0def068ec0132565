package pinn

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
)

// SpecsFormat and SpecsVersion are what a file of 'pinn export specs' says it is.
const (
	SpecsFormat  = "pinn.specs"
	SpecsVersion = 3
)

// Specs are models and GPUs as 'pinn export specs' writes them.
type Specs struct {
	Precisions map[string]Precision `json:"precisions"`
	Models     []ModelSpec          `json:"models"`
	GPUs       []GPU                `json:"gpus"`

	// DraftAcceptance is what is assumed of each method of drafting where nobody says.
	DraftAcceptance map[string]float64 `json:"draft_acceptance"`
}

// staticActivations tells whether activations are scaled by factors that the checkpoint holds.
func (p Precision) staticActivations() bool { return p.Math == "fp8" && !p.DynamicActivations }

// shard of one of so many GPUs.
func (l *Layers) shard(model string, gpus int64) (Shard, error) {
	found, fits := l.Shards[gpus]
	if !fits {
		return found, fmt.Errorf("tensor_parallel_size %d does not divide the heads of %s: use one of %v",
			gpus, model, slices.Sorted(maps.Keys(l.Shards)))
	}
	return found, nil
}

// matmulFlop is the rate at which matrices of a format are multiplied: bf16's where the chip has
// none for it.
func (g *GPU) matmulFlop(p Precision) float64 {
	if rate := g.PeakFlopPerS[p.Math]; rate > 0 {
		return rate
	}
	return g.PeakFlopPerS["bf16"]
}

func (g *GPU) check() error {
	for name, v := range map[string]float64{
		"memory_bandwidth_bytes_per_s": g.MemoryBandwidthBytesPerS, "sm_count": g.SMCount,
		"l2_bytes": g.L2Bytes, "compute_capability": g.ComputeCapability,
		"link_bandwidth_bytes_per_s": g.LinkBandwidthBytesPerS,
		"pcie_bandwidth_bytes_per_s": g.PcieBandwidthBytesPerS,
		"peak_flop_per_s.bf16":       g.PeakFlopPerS["bf16"],
	} {
		if !usable(v) || v == 0 {
			return fmt.Errorf("GPU %s: %s must be positive, got %v", g.Name, name, v)
		}
	}
	for kind, v := range g.PeakFlopPerS {
		if !usable(v) {
			return fmt.Errorf("GPU %s: peak_flop_per_s.%s must not be negative, got %v", g.Name, kind, v)
		}
	}
	return nil
}

// LoadSpecs reads a file of 'pinn export specs'; it fails as [ReadSpecs].
func LoadSpecs(path string) (*Specs, error) { return load(path, ReadSpecs) }

// ReadSpecs reads what 'pinn export specs' writes.
//
// It fails where the file is of another version or a model or GPU in it cannot be used, naming it.
func ReadSpecs(r io.Reader) (*Specs, error) {
	var file struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
		Specs
	}
	err := json.NewDecoder(r).Decode(&file)
	if err == nil || file.Format != "" { // whatever else another version may have
		if err := checkVersion(SpecsFormat, file.Format, file.Version, SpecsVersion); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, fmt.Errorf("malformed JSON: %w", err)
	}
	specs := &file.Specs
	for name, p := range specs.Precisions {
		if !usable(p.BytesPerWeight) || p.BytesPerWeight == 0 {
			return nil, fmt.Errorf("precision %s: bytes_per_weight must be positive, got %v",
				name, p.BytesPerWeight)
		}
	}
	for i := range specs.Models {
		if err := specs.checkModel(&specs.Models[i]); err != nil {
			return nil, fmt.Errorf("model %s: %w", specs.Models[i].Name, err)
		}
	}
	for i := range specs.GPUs {
		if err := specs.GPUs[i].check(); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// Model finds a model by a name that Python knows it by: in any case, full or bare, or an alias, which
// may sample otherwise.
func (s *Specs) Model(name string) (*ModelSpec, error) {
	names := make([]string, len(s.Models))
	for i := range s.Models {
		if names[i] = s.Models[i].Name; isModel(name, names[i]) {
			return &s.Models[i], nil
		}
	}
	for i := range s.Models {
		for alias, sampling := range s.Models[i].Aliases {
			if isModel(name, alias) {
				found := s.Models[i]
				found.Sampling = sampling
				return &found, nil
			}
		}
	}
	return nil, fmt.Errorf("no model %q among %s: add it with 'pinn export specs --model'",
		name, few(names, name))
}

// GPU finds a GPU by its name or an alias, in any case and punctuation.
func (s *Specs) GPU(name string) (*GPU, error) {
	names := make([]string, len(s.GPUs))
	for i := range s.GPUs {
		if names[i] = s.GPUs[i].Name; isGPU(name, names[i]) || isGPU(name, s.GPUs[i].Aliases...) {
			return &s.GPUs[i], nil
		}
	}
	return nil, fmt.Errorf("no GPU %q among %s: add it with 'pinn export specs --gpu'",
		name, few(names, name))
}

// largest is above every real width or count, and keeps their products within int64 and float64.
const largest = 1 << 24

func (s *Specs) checkModel(m *ModelSpec) error {
	for name, sampling := range m.Aliases {
		if err := sampling.check(); err != nil {
			return fmt.Errorf("alias %s: %w", name, err)
		}
	}
	for _, layers := range []*Layers{&m.Layers, &m.MTP, &m.Eagle} {
		f := layers.Precisions
		for _, name := range []string{f.Attention, f.DenseFFN, f.Experts, f.LMHead, m.KVCachePrecision} {
			if _, known := s.Precisions[name]; !known {
				return fmt.Errorf("its format %q is not among the file's precisions", name)
			}
		}
		if e := layers.Experts; e != nil {
			for _, v := range []int64{e.Experts, e.TopK, 1 + e.Experts - e.TopK, e.Width, e.Matrices,
				e.StreamWidth} {
				if v < 1 || v > largest {
					return fmt.Errorf("a count or width of its experts is %d, it must lie in [1, %d]", v,
						largest)
				}
			}
		}
	}
	return m.Sampling.check()
}
