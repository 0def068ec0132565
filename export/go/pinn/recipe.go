package pinn

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func (r releases) hold(engine string, version []int64) bool {
	return r.engine == engine && (r.since == "" || !before(version, release(r.since))) &&
		(r.until == "" || before(version, release(r.until)))
}

// within tells whether a value is at least one and below another, which is none if it is 0.
func within(value, least, below float64) bool {
	return least <= value && (below == 0 || value < below)
}

// recipe is what runs, whatever engine it is of: Python's pinn.engines.recipe, as far as costs and
// embeddings ask for it.
type recipe struct {
	tensorParallel, dataParallel int64
	expertParallel               int64
	gathers                      bool
	graphTokens, graphRequests   int64
	fusedAllReduce               bool
	fusedQuantization            bool
	allReduceLatency             float64
	allReduceMostBytes           float64
	latentLaunches               float64
	ownDecodeKernels             bool
	moeKernels                   string
	moeNamed                     bool
	chunkedPrefill               bool
	speculation                  speculation
}

// resolver turns flags into what runs on a GPU, as Python's pinn.engines.recipe_rules; of what it
// refuses, err is the first.
type resolver struct {
	Serving
	gpu       *GPU
	modelType string
	version   []int64
	recipe
	err error
}

func (s *resolver) refuse(format string, values ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, values...)
	}
}

// resolve gives what runs, and the flags with the engine and release that they leave open.
func (s Serving) resolve(gpu *GPU, modelType string) (recipe, Serving, error) {
	if s.Engine == "" {
		s.Engine = "vllm"
	}
	if s.EngineVersion == "" {
		for _, d := range engineDefaults {
			if d.engine == s.Engine && d.flag == "engine_version" {
				s.EngineVersion = d.value
			}
		}
	}
	r := &resolver{Serving: s, gpu: gpu, modelType: modelType, version: release(s.EngineVersion)}
	r.speculation, r.err = s.readSpeculation()
	r.tensorParallel, r.dataParallel = s.TensorParallelSize, s.DataParallelSize
	r.latentLaunches = latentLaunches[s.Engine]
	r.ownDecodeKernels = s.Engine == "trtllm"
	r.ranks()
	r.allReduce()
	r.moeKernels, r.moeNamed = r.namedKernels()
	r.chunkedPrefill = r.yes("enable_chunked_prefill", s.EnableChunkedPrefill)
	if !s.EnforceEager && r.err == nil {
		r.graphs()
	}
	return r.recipe, s, r.err
}

// ranks settles parallelism.
func (s *resolver) ranks() {
	switch {
	case s.Engine != "vllm":
		s.attentionRanks()
		// TensorRT-LLM sends tokens to their experts where ranks outnumber those.
		s.gathers = s.Engine == "sglang" && s.MoeA2aBackend != "deepep"
	case s.EpSize != 0 || s.EnableDPAttention:
		s.refuse("vllm has no ep_size and no enable_dp_attention: leave them out")
	}
	ranks := s.tensorParallel * s.dataParallel
	s.expertParallel = max(s.EpSize, 1)
	if s.EnableExpertParallel || s.MoeA2aBackend == "deepep" {
		s.expertParallel = ranks
	}
	if s.expertParallel < 1 || ranks%s.expertParallel != 0 {
		s.refuse("ep_size %d does not divide the %d GPUs of a replica", s.EpSize, ranks)
	}
}

// decodeAttentionTime is that of the engine's own kernels relative to those that vLLM runs.
func (r *recipe) decodeAttentionTime(g *GPU, cache Precision) float64 {
	if !r.ownDecodeKernels || g.ComputeCapability != 9 {
		return 1
	}
	if cache.BytesPerWeight >= activationBytes {
		return xqaTime16
	}
	return xqaTime8
}

// allReduce settles what an all-reduce takes and is fused with.
func (s *resolver) allReduce() {
	fused := s.yes("fuse_all_reduce", nil)
	if s.Engine == "vllm" { // some releases fuse neither over replicas nor with stages
		if fused && s.DataParallelSize > 1 {
			fused = s.yes("fuse_all_reduce_data_parallel", nil)
		}
		if fused && s.PipelineParallelSize > 1 {
			fused = s.yes("fuse_all_reduce_pipelined", nil)
		}
	}
	if s.FuseAllReduce != nil {
		fused = *s.FuseAllReduce
	}
	s.allReduceLatency, s.allReduceMostBytes = 1, anyMessage
	if s.Engine == "vllm" && fused {
		s.allReduceMostBytes = s.share("fuse_all_reduce_most_mib") * (1 << 20)
	}
	if s.gpu.HasNvlink {
		kernel := s
		if s.Engine != "trtllm" && fused { // by FlashInfer's copy of TensorRT-LLM's kernel
			kernel = &resolver{Serving: Serving{Engine: "trtllm"}, gpu: s.gpu}
			kernel.version = release(kernel.lookUp("engine_version"))
		}
		s.allReduceLatency = kernel.share("all_reduce_latency")
	}
	s.fusedQuantization = s.Engine == "trtllm" && fused
	s.fusedAllReduce = fused && !(s.Engine == "sglang" &&
		(s.EnableDPAttention || s.MoeA2aBackend == "deepep"))
}

// attentionRanks: SGLang and TensorRT-LLM count all GPUs as tensor parallel ones, and attention
// data parallelism takes its ranks from among them.
func (s *resolver) attentionRanks() {
	gpus, replicas := s.TensorParallelSize, s.DataParallelSize
	if s.Engine == "trtllm" && s.EnableDPAttention {
		if replicas != 1 && replicas != gpus {
			s.refuse("enable_attention_dp attends on each of %d GPUs: leave the data-parallel size "+
				"%d out", gpus, replicas)
		}
		replicas = gpus
	}
	if replicas > 1 && !s.EnableDPAttention {
		s.refuse("a data-parallel size of %d without attention data parallelism starts %s servers of "+
			"their own: predict one, or set enable_dp_attention", replicas, s.Engine)
	}
	if gpus%replicas != 0 {
		s.refuse("%d attention replicas do not divide %d GPUs", replicas, gpus)
	}
	s.tensorParallel, s.dataParallel = max(gpus/replicas, 1), replicas
}

// graphs are what CUDA graphs are captured of.
func (s *resolver) graphs() {
	limit := s.number("max_cudagraph_capture_size", s.MaxCudagraphCaptureSize)
	seqs := s.number("max_num_seqs", s.MaxNumSeqs)
	switch s.Engine {
	case "vllm":
		s.vllmGraphs(limit, seqs)
	case "sglang":
		s.sglangGraphs(limit, seqs, s.yes("cudagraph_padding", s.CudagraphPadding))
	default:
		limit = min(limit, seqs)
		if !s.yes("cudagraph_padding", s.CudagraphPadding) {
			limit = min(limit, contiguousGraphs)
		}
		// Only decodes are captured.
		s.graphTokens, s.graphRequests = 1, limit
	}
}

// vllmGraphs are those of vLLM: whole steps of decodes, and steps with prompts in pieces, by
// default.
func (s *resolver) vllmGraphs(limit, seqs int64) {
	mode := s.CudagraphMode
	if mode == "" {
		mode = s.lookUp("cudagraph_mode")
	}
	rows := int64(1)
	if s.yes("graphs_of_drafts", nil) {
		rows += s.speculation.tokens
	}
	if s.MaxCudagraphCaptureSize == 0 {
		limit = min(2*rows*seqs, limit)
		if s.MaxNumBatchedTokens > 0 {
			limit = min(limit, s.MaxNumBatchedTokens)
		}
		limit = largestGraph(limit)
	}
	switch mode {
	case "NONE":
	case "FULL_DECODE_ONLY":
		s.graphTokens, s.graphRequests = 1, max(limit/(1+s.speculation.tokens), 1)
	case "FULL_AND_PIECEWISE", "FULL", "PIECEWISE":
		s.graphTokens = limit
	default:
		s.refuse("cudagraph_mode %q is unknown: use FULL_AND_PIECEWISE, FULL_DECODE_ONLY, FULL, "+
			"PIECEWISE or NONE", mode)
	}
}

// largestGraph is the largest size that vLLM captures up to a limit.
func largestGraph(most int64) int64 {
	switch {
	case most >= 256:
		return most - most%16
	case most >= 8:
		return most - most%8
	case most >= 4:
		return 4
	}
	return min(most, 2)
}

// number is what a flag says, else its default.
func (s *resolver) number(flag string, given int64) int64 {
	if given > 0 {
		return given
	}
	text := s.lookUp(flag)
	found, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.refuse("the default of %s is %q, no number", flag, text)
	}
	return found
}

// share is the default of what is a number, but no count.
func (s *resolver) share(flag string) float64 {
	text := s.lookUp(flag)
	found, err := strconv.ParseFloat(text, 64)
	if err != nil {
		s.refuse("the default of %s is %q, no number", flag, text)
	}
	return found
}

// yes is a default, or what was given, of a switch.
func (s *resolver) yes(flag string, given *bool) bool {
	if given != nil {
		return *given
	}
	return s.lookUp(flag) == "yes"
}

// lookUp finds the default of a flag: the first line that fits.
func (s *resolver) lookUp(flag string) string {
	gpus := float64(s.TensorParallelSize)
	for _, d := range engineDefaults {
		if d.flag != flag || !d.hold(s.Engine, s.version) ||
			!within(s.gpu.MemoryBytes/(1<<30), d.leastGiB, d.below) || !within(gpus, d.leastTP, d.belowTP) ||
			d.modelTypes != "" && !slices.Contains(strings.Fields(d.modelTypes), s.modelType) {
			continue
		}
		if named, _ := regexp.MatchString(d.gpu, strings.ToLower(s.gpu.Name)); named {
			return d.value
		}
	}
	s.refuse("engine %q %s has no default for %s: use vllm, sglang or trtllm and a release such as "+
		"0.15.1", s.Engine, s.EngineVersion, flag)
	return ""
}

var releasePattern = regexp.MustCompile(`^v?(\d+(?:\.\d+)*)`)

// release holds the numbers of a version; none where it does not begin with one.
func release(version string) []int64 {
	found := releasePattern.FindStringSubmatch(strings.TrimSpace(version))
	if found == nil {
		return nil
	}
	var numbers []int64
	for _, part := range strings.Split(found[1], ".") {
		number, _ := strconv.ParseInt(part, 10, 64)
		numbers = append(numbers, number)
	}
	return numbers
}

// before compares two versions number by number.
func before(a, b []int64) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return len(a) < len(b)
}
