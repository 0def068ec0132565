package pinn

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// SpecsFormat and SpecsVersion are what a file of 'pinn export specs' says it is.
const (
	SpecsFormat  = "pinn.specs"
	SpecsVersion = 2
)

// Specs are models and GPUs as 'pinn export specs' writes them.
type Specs struct {
	Precisions map[string]Precision
	Models     []ModelSpec
	GPUs       []GPU

	// DraftAcceptance is what is assumed of each method of drafting where nobody says.
	DraftAcceptance map[string]float64
}

// Precision is a number format of weights or of the KV cache.
type Precision struct {
	Name               string  `json:"name"`
	BytesPerWeight     float64 `json:"bytes_per_weight"`
	Math               string  `json:"math"` // tensor-core rate that it can use at best
	DynamicActivations bool    `json:"dynamic_activations"`
}

// staticActivations tells whether activations are scaled by factors that the checkpoint holds.
func (p Precision) staticActivations() bool { return p.Math == "fp8" && !p.DynamicActivations }

// ModelSpec is a model as a serving engine sees it.
type ModelSpec struct {
	Name             string        `json:"name"`
	ModelType        string        `json:"model_type"` // as its config.json; some defaults ask for it
	HiddenSize       int64         `json:"hidden_size"`
	VocabSize        int64         `json:"vocab_size"`
	MaxPosition      int64         `json:"max_position"`
	LayerGroups      []LayerGroup  `json:"layer_groups"`
	Precisions       WeightFormats `json:"precisions"`
	KVCachePrecision string        `json:"kv_cache_precision"`
	Sampling         Sampling      `json:"sampling"`

	// Aliases are other names of the model, each with how it samples.
	Aliases map[string]Sampling `json:"aliases"`
}

// WeightFormats names the number format of each kind of weight matrix.
type WeightFormats struct {
	Attention     string `json:"attention"`
	DenseFFN      string `json:"dense_ffn"`
	Experts       string `json:"experts"`
	SharedExperts string `json:"shared_experts"`
	LMHead        string `json:"lm_head"`
}

// LayerGroup is a number of layers of one shape.
type LayerGroup struct {
	Count     int64     `json:"count"`
	Attention Attention `json:"attention"`
	FFN       FFN       `json:"ffn"`
}

// Attention of one layer: of Kind "grouped_query", or "latent" (MLA).
type Attention struct {
	Kind            string `json:"kind"`
	Heads           int64  `json:"heads"`
	KVHeads         int64  `json:"kv_heads"`
	HeadDim         int64  `json:"head_dim"`
	WindowTokens    int64  `json:"window_tokens"` // 0 for full attention
	QKNormFullWidth bool   `json:"qk_norm_full_width"`
	QLoraRank       int64  `json:"q_lora_rank"` // 0 where queries are not compressed
	KVLoraRank      int64  `json:"kv_lora_rank"`
	QKNopeHeadDim   int64  `json:"qk_nope_head_dim"`
	QKRopeHeadDim   int64  `json:"qk_rope_head_dim"`
	VHeadDim        int64  `json:"v_head_dim"`
}

func (a *Attention) latent() bool { return a.Kind == "latent" }

// queryDim is the width of a query and key head.
func (a *Attention) queryDim() int64 {
	if a.latent() {
		return a.QKNopeHeadDim + a.QKRopeHeadDim
	}
	return a.HeadDim
}

// keyHeads that decodes read; a latent cache is one shared head.
func (a *Attention) keyHeads() int64 {
	if a.latent() {
		return 1
	}
	return a.KVHeads
}

// latentWidth is what a latent cache holds per token.
func (a *Attention) latentWidth() int64 { return a.KVLoraRank + a.QKRopeHeadDim }

// FFN of one layer: of Kind "dense" or "mixture_of_experts".
type FFN struct {
	Kind        string `json:"kind"`
	Width       int64  `json:"width"`
	Gated       bool   `json:"gated"`
	Experts     int64  `json:"experts"`
	TopK        int64  `json:"top_k"`
	SharedWidth int64  `json:"shared_width"`
}

func (f *FFN) moe() bool { return f.Kind == "mixture_of_experts" }

func (f *FFN) gates() int64 {
	if f.Gated {
		return 1
	}
	return 0
}

// GPU is a datasheet in SI units, in the layout of the project's data/gpus.
type GPU struct {
	Name              string             `json:"name"`
	MemoryBandwidth   float64            `json:"memory_bandwidth_bytes_per_s"`
	MemoryBytes       float64            `json:"memory_bytes"`
	PeakFlop          map[string]float64 `json:"peak_flop_per_s"`
	SMCount           float64            `json:"sm_count"`
	L2Bytes           float64            `json:"l2_bytes"`
	ComputeCapability float64            `json:"compute_capability"`
	LinkBandwidth     float64            `json:"link_bandwidth_bytes_per_s"`
	PCIeBandwidth     float64            `json:"pcie_bandwidth_bytes_per_s"`
	HasNVLink         bool               `json:"has_nvlink"`
	Aliases           []string           `json:"aliases"`
}

// matmulFlop is the rate at which matrices of a format are multiplied: bf16's where the chip has
// none for it.
func (g *GPU) matmulFlop(p Precision) float64 {
	if rate := g.PeakFlop[p.Math]; rate > 0 {
		return rate
	}
	return g.PeakFlop["bf16"]
}

func (g *GPU) check() error {
	for name, v := range map[string]float64{
		"memory_bandwidth_bytes_per_s": g.MemoryBandwidth, "sm_count": g.SMCount,
		"l2_bytes": g.L2Bytes, "compute_capability": g.ComputeCapability,
		"link_bandwidth_bytes_per_s": g.LinkBandwidth, "pcie_bandwidth_bytes_per_s": g.PCIeBandwidth,
		"peak_flop_per_s.bf16": g.PeakFlop["bf16"],
	} {
		if !usable(v) || v == 0 {
			return fmt.Errorf("GPU %s: %s must be positive, got %v", g.Name, name, v)
		}
	}
	for kind, v := range g.PeakFlop {
		if !usable(v) {
			return fmt.Errorf("GPU %s: peak_flop_per_s.%s must not be negative, got %v", g.Name, kind, v)
		}
	}
	return nil
}

// ReadSpecs reads a file of 'pinn export specs'.
//
// It fails where the file is of another version or a model or GPU in it cannot be used, naming it.
func ReadSpecs(r io.Reader) (*Specs, error) {
	var file struct {
		Format     string               `json:"format"`
		Version    int                  `json:"version"`
		Precisions map[string]Precision `json:"precisions"`
		Models     []ModelSpec          `json:"models"`
		GPUs       []GPU                `json:"gpus"`
		Acceptance map[string]float64   `json:"draft_acceptance"`
	}
	if err := json.NewDecoder(r).Decode(&file); err != nil {
		return nil, fmt.Errorf("malformed JSON: %w", err)
	}
	if err := checkVersion(SpecsFormat, file.Format, file.Version, SpecsVersion); err != nil {
		return nil, err
	}
	specs := &Specs{file.Precisions, file.Models, file.GPUs, file.Acceptance}
	for name, p := range specs.Precisions {
		if !usable(p.BytesPerWeight) || p.BytesPerWeight == 0 {
			return nil, fmt.Errorf("precision %s: bytes_per_weight must be positive, got %v",
				name, p.BytesPerWeight)
		}
	}
	for i := range specs.Models {
		if err := specs.checkModel(&specs.Models[i]); err != nil {
			return nil, err
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
		if names[i] = s.Models[i].Name; isModel(name, names[i], nil) {
			return &s.Models[i], nil
		}
	}
	for i := range s.Models {
		for alias, sampling := range s.Models[i].Aliases {
			if isModel(name, alias, nil) {
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
		if names[i] = s.GPUs[i].Name; isGPU(name, names[i], s.GPUs[i].Aliases) {
			return &s.GPUs[i], nil
		}
	}
	return nil, fmt.Errorf("no GPU %q among %s: add it with 'pinn export specs --gpu'",
		name, few(names, name))
}

// largest is above every real width or count, and keeps their products within int64 and float64.
const largest = 1 << 24

func (s *Specs) checkModel(m *ModelSpec) error {
	fail := func(format string, values ...any) error {
		return fmt.Errorf("model %s: %s", m.Name, fmt.Sprintf(format, values...))
	}
	if m.HiddenSize < 1 || m.VocabSize < 1 || m.HiddenSize > largest || m.VocabSize > largest {
		return fail("hidden_size and vocab_size must lie in [1, %d], got %d and %d",
			largest, m.HiddenSize, m.VocabSize)
	}
	if err := m.Sampling.check(); err != nil {
		return fail("%v", err)
	}
	for name, sampling := range m.Aliases {
		if err := sampling.check(); err != nil {
			return fail("alias %s: %v", name, err)
		}
	}
	if len(m.LayerGroups) == 0 {
		return fail("it has no layers")
	}
	formats := []string{m.Precisions.Attention, m.Precisions.DenseFFN, m.Precisions.Experts,
		m.Precisions.SharedExperts, m.Precisions.LMHead, m.KVCachePrecision}
	for _, name := range formats {
		if _, known := s.Precisions[name]; !known {
			return fail("its format %q is not among the file's precisions", name)
		}
	}
	for _, g := range m.LayerGroups {
		a, f := g.Attention, g.FFN
		kind := a.Kind == "grouped_query" || a.Kind == "latent"
		if !kind || !(f.moe() || f.Kind == "dense") {
			return fail("this package knows no attention %q with feed-forward %q: use the Go "+
				"package of the program that wrote the file", a.Kind, f.Kind)
		}
		positive := []int64{g.Count, a.Heads, a.queryDim(), a.keyHeads(), f.Width}
		if f.moe() {
			positive = append(positive, f.Experts, f.TopK, 1+f.Experts-f.TopK)
		}
		for _, v := range positive {
			if v < 1 || v > largest {
				return fail("a count or width is %d, it must lie in [1, %d]", v, largest)
			}
		}
		for _, v := range []int64{a.WindowTokens, a.QLoraRank, a.KVLoraRank, a.QKRopeHeadDim,
			a.QKNopeHeadDim, a.VHeadDim, f.SharedWidth} {
			if v < 0 || v > largest {
				return fail("a width is %d, it must lie in [0, %d]", v, largest)
			}
		}
	}
	return nil
}

// layers of the model.
func (m *ModelSpec) layers() float64 {
	total := int64(0)
	for _, g := range m.LayerGroups {
		total += g.Count
	}
	return float64(total)
}

// moe is the shape of the routed experts, nil for a dense model, and the number of their layers.
func (m *ModelSpec) moe() (*FFN, float64) {
	var found *FFN
	total := int64(0)
	for i := range m.LayerGroups {
		if g := &m.LayerGroups[i]; g.FFN.moe() {
			total += g.Count
			if found == nil {
				found = &g.FFN
			}
		}
	}
	return found, float64(total)
}

// window is the attention window of the windowed layers; 0 without one.
func (m *ModelSpec) window() int64 {
	for _, g := range m.LayerGroups {
		if g.Attention.WindowTokens > 0 {
			return g.Attention.WindowTokens
		}
	}
	return 0
}

// width of a matrix as a descriptor: log2(1 + elements / 64).
func width(elements float64) float64 { return math.Log2(1 + elements/64) }
