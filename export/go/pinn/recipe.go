package pinn

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// engineDefault is a line of the table of the engines' defaults.
type engineDefault struct {
	engine, flag     string
	since, until     string
	gpu              string
	leastGiB, below  float64
	leastTP, belowTP float64
	modelTypes       string // apart by spaces; empty for any
	value            string
}

// placed is a GPU and the type of the model on it, which defaults may depend on.
type placed struct {
	*GPU
	modelType string
}

// releaseKernel is a line of the table of what releases multiply experts by.
type releaseKernel struct {
	engine, format           string
	since, until             string
	leastCapability, belowCC float64
	spread, timedAs          string
}

// kernelName is a name of kernels of the experts and what they are timed as.
type kernelName struct{ name, timedAs string }

// recipe is what runs, whatever engine it is of: Python's pinn.specs.recipe, as far as costs and
// embeddings ask for it.
type recipe struct {
	tensorParallel, dataParallel int64
	expertParallel               int64
	gathers                      bool
	graphTokens, graphRequests   int64
	fusedAllReduce               bool
	fusedQuantization            bool
	allReduceLatency             float64
	latentLaunches               float64
	ownDecodeKernels             bool
	moeKernels, mxfp4Kernels     string
	moeNamed                     bool
	chunkedPrefill               bool
	speculation                  speculation
}

// resolve turns flags into what runs on a GPU, as Python's pinn.specs.recipe_rules.
func (s Serving) resolve(g placed) (recipe, error) {
	if s.Engine == "" {
		s.Engine = "vllm"
	}
	drafts, err := s.speculation()
	if err != nil {
		return recipe{}, err
	}
	if s.EngineVersion == "" {
		s.EngineVersion = s.reference()
	}
	r := recipe{
		tensorParallel: s.TensorParallelSize, dataParallel: s.DataParallelSize, speculation: drafts,
		latentLaunches: latentLaunches[s.Engine], ownDecodeKernels: s.Engine == "trtllm",
		mxfp4Kernels: mxfp4Kernels[s.Engine],
	}
	if s.Engine != "vllm" {
		if err := s.attentionRanks(&r); err != nil {
			return r, err
		}
		// TensorRT-LLM sends tokens to their experts where ranks outnumber those.
		r.gathers = s.Engine == "sglang" && s.MoeA2aBackend != "deepep"
	} else if s.EpSize != 0 || s.EnableDPAttention {
		return r, fmt.Errorf("vllm has no ep_size and no enable_dp_attention: leave them out")
	}
	ranks := r.tensorParallel * r.dataParallel
	r.expertParallel = max(s.EpSize, 1)
	if s.EnableExpertParallel || s.MoeA2aBackend == "deepep" {
		r.expertParallel = ranks
	}
	if r.expertParallel < 1 || ranks%r.expertParallel != 0 {
		return r, fmt.Errorf("ep_size %d does not divide the %d GPUs of a replica", s.EpSize, ranks)
	}
	if err := s.allReduce(&r, g); err != nil {
		return r, err
	}
	if r.moeKernels, r.moeNamed, err = s.moeKernels(g); err != nil {
		return r, err
	}
	chunked, err := s.lookUp("enable_chunked_prefill", g)
	if err != nil {
		return r, err
	}
	r.chunkedPrefill = chunked == "yes"
	if s.EnableChunkedPrefill != nil {
		r.chunkedPrefill = *s.EnableChunkedPrefill
	}
	return r, s.graphs(&r, g)
}

// allReduceLatency is the time of a small all-reduce relative to vLLM's own kernel, as
// ALL_REDUCE_LATENCY of Python's pinn.specs.own_kernels.
var allReduceLatency = map[string]float64{"vllm": 1, "sglang": 0.65, "trtllm": 0.69}

// latentLaunches are those of a layer's latent attention beyond vLLM's, in a dense layer's, as
// LATENT_LAUNCHES of Python's pinn.specs.own_kernels.
var latentLaunches = map[string]float64{"sglang": 1.5}

// xqaTime is the time of TensorRT-LLM's decode attention on Hopper relative to that of vLLM's
// kernels, by the bits of a cached element, as XQA_TIME of Python's pinn.specs.own_kernels.
var xqaTime = map[int]float64{16: 1.12, 8: 0.66}

// decodeAttentionTime is that of the engine's own kernels relative to those that vLLM runs.
func (r *recipe) decodeAttentionTime(g *GPU, cache Precision) float64 {
	if !r.ownDecodeKernels || g.ComputeCapability != 9 {
		return 1
	}
	if cache.BytesPerWeight >= activationBytes {
		return xqaTime[16]
	}
	return xqaTime[8]
}

// allReduce settles what an all-reduce takes and is fused with.
func (s Serving) allReduce(r *recipe, g placed) error {
	r.allReduceLatency = 1
	if latency, known := allReduceLatency[s.Engine]; known && g.HasNVLink {
		r.allReduceLatency = latency
	}
	fused, err := s.lookUp("fuse_all_reduce", g)
	if err != nil {
		return err
	}
	r.fusedAllReduce = fused == "yes"
	for flag, size := range map[string]int64{
		"fuse_all_reduce_data_parallel": s.DataParallelSize,
		"fuse_all_reduce_pipelined":     s.PipelineParallelSize,
	} {
		// Some releases of vLLM fuse neither over replicas nor with stages.
		if s.Engine == "vllm" && size > 1 && r.fusedAllReduce {
			if fused, err = s.lookUp(flag, g); err != nil {
				return err
			}
			r.fusedAllReduce = fused == "yes"
		}
	}
	if s.FuseAllReduce != nil {
		r.fusedAllReduce = *s.FuseAllReduce
	}
	r.fusedQuantization = s.Engine == "trtllm" && r.fusedAllReduce
	if s.Engine == "sglang" && (s.EnableDPAttention || s.MoeA2aBackend == "deepep") {
		r.fusedAllReduce = false
	}
	return nil
}

// attentionRanks: SGLang and TensorRT-LLM count all GPUs as tensor parallel ones, and attention
// data parallelism takes its ranks from among them.
func (s Serving) attentionRanks(r *recipe) error {
	gpus, replicas := s.TensorParallelSize, s.DataParallelSize
	if s.Engine == "trtllm" && s.EnableDPAttention {
		if replicas != 1 && replicas != gpus {
			return fmt.Errorf("enable_attention_dp attends on each of %d GPUs: leave the "+
				"data-parallel size %d out", gpus, replicas)
		}
		replicas = gpus
	}
	if replicas > 1 && !s.EnableDPAttention {
		return fmt.Errorf("a data-parallel size of %d without attention data parallelism starts %s "+
			"servers of their own: predict one, or set enable_dp_attention", replicas, s.Engine)
	}
	if gpus%replicas != 0 {
		return fmt.Errorf("%d attention replicas do not divide %d GPUs", replicas, gpus)
	}
	r.tensorParallel, r.dataParallel = gpus/replicas, replicas
	return nil
}

// graphs are what CUDA graphs are captured of.
func (s Serving) graphs(r *recipe, g placed) error {
	if s.EnforceEager {
		return nil
	}
	limit, err := s.number("max_cudagraph_capture_size", s.MaxCudagraphCaptureSize, g)
	if err != nil {
		return err
	}
	seqs, err := s.number("max_num_seqs", s.MaxNumSeqs, g)
	if err != nil {
		return err
	}
	if s.Engine == "vllm" {
		return s.vllmGraphs(r, g, limit, seqs)
	}
	padding, err := s.lookUp("cudagraph_padding", g)
	if err != nil {
		return err
	}
	padded := padding == "yes"
	if s.CudagraphPadding != nil {
		padded = *s.CudagraphPadding
	}
	if s.Engine == "sglang" {
		return s.sglangGraphs(r, g, limit, seqs, padded)
	}
	limit = min(limit, seqs)
	if !padded {
		limit = min(limit, contiguousGraphs)
	}
	// Only decodes are captured.
	r.graphTokens, r.graphRequests = 1, limit
	return nil
}

// vllmGraphs are those of vLLM: whole steps of decodes, and steps with prompts in pieces, by
// default.
func (s Serving) vllmGraphs(r *recipe, g placed, limit, seqs int64) error {
	mode := s.CudagraphMode
	if mode == "" {
		found, err := s.lookUp("cudagraph_mode", g)
		if err != nil {
			return err
		}
		mode = found
	}
	ofDrafts, err := s.lookUp("graphs_of_drafts", g)
	if err != nil {
		return err
	}
	rows := int64(1)
	if ofDrafts == "yes" {
		rows += r.speculation.tokens
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
		r.graphTokens, r.graphRequests = 1, max(limit/(1+r.speculation.tokens), 1)
	case "FULL_AND_PIECEWISE", "FULL", "PIECEWISE":
		r.graphTokens = limit
	default:
		return fmt.Errorf("cudagraph_mode %q is unknown: use FULL_AND_PIECEWISE, "+
			"FULL_DECODE_ONLY, FULL, PIECEWISE or NONE", mode)
	}
	return nil
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

// contiguousGraphs: up to here TensorRT-LLM captures every number of decodes without padding.
const contiguousGraphs = 32

func (s Serving) number(flag string, given int64, g placed) (int64, error) {
	if given > 0 {
		return given, nil
	}
	text, err := s.lookUp(flag, g)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// reference is the release whose defaults hold where none is named.
func (s Serving) reference() string {
	for _, d := range engineDefaults {
		if d.engine == s.Engine && d.flag == "engine_version" {
			return d.value
		}
	}
	return ""
}

// lookUp finds the default of a flag: the first line that fits.
func (s Serving) lookUp(flag string, g placed) (string, error) {
	version, gib := release(s.EngineVersion), g.MemoryBytes/(1<<30)
	for _, d := range engineDefaults {
		fits := d.engine == s.Engine && d.flag == flag &&
			(d.since == "" || !before(version, release(d.since))) &&
			(d.until == "" || before(version, release(d.until))) &&
			d.leastGiB <= gib && (d.below == 0 || gib < d.below) &&
			d.leastTP <= float64(s.TensorParallelSize) &&
			(d.belowTP == 0 || float64(s.TensorParallelSize) < d.belowTP) &&
			(d.modelTypes == "" || slices.Contains(strings.Fields(d.modelTypes), g.modelType))
		if !fits {
			continue
		}
		if named, _ := regexp.MatchString(d.gpu, strings.ToLower(g.Name)); named {
			return d.value, nil
		}
	}
	return "", fmt.Errorf("engine %q %s has no default for %s: use vllm, sglang or trtllm and a "+
		"release such as 0.15.1", s.Engine, s.EngineVersion, flag)
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
