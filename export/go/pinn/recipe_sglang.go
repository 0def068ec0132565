package pinn

import "slices"

// sglangGraphs are those of SGLang: decodes up to a size, and from 0.5.10 on prompts up to a number
// of tokens, as Python's pinn.engines.vllm_sglang_trtllm.
func (s *resolver) sglangGraphs(limit, seqs int64, padded bool) {
	if s.MaxNumSeqs > 0 {
		if s.MaxCudagraphCaptureSize == 0 && s.since(0, 5, 22) {
			limit = min(limit, seqs)
		}
		seqs = max(seqs/s.dataParallel, 1)
	} else if s.speculation.tokens > 0 {
		seqs = max(sglangSpeculatingRequests/s.dataParallel, 1)
	}
	s.graphRequests = s.largestDecodes(limit, seqs, padded)
	s.graphTokens = max(s.promptGraphTokens(), 1)
}

// since tells whether the release is that one or a later one.
func (s *resolver) since(numbers ...int64) bool { return !before(s.version, numbers) }

// largestDecodes is the largest number of decodes that is captured: no more than may run, and with
// attention data parallelism a multiple of the GPUs that share an attention layer.
func (s *resolver) largestDecodes(limit, most int64, padded bool) int64 {
	captured := s.capturedSizes(limit, padded)
	last := captured[len(captured)-1]
	if last > most {
		fewer := slices.DeleteFunc(captured, func(size int64) bool { return size >= most })
		captured, last = append(fewer, most), most
	}
	if s.EnableDPAttention {
		for _, size := range slices.Backward(captured) {
			if size%s.tensorParallel == 0 {
				return size
			}
		}
	}
	return last
}

// capturedSizes are the numbers of decodes that graphs are captured for, as sglang_sizes of Python's
// pinn.engines.vllm_sglang_trtllm.
func (s *resolver) capturedSizes(most int64, padded bool) (sizes []int64) {
	ranges, drafts := sglangSizes, s.speculation.tokens > 0
	if drafts {
		ranges = sglangDraftSizes
	}
	if !padded {
		ranges = [][3]int64{{1, most, 1}}
	}
	for _, each := range ranges {
		for size := each[0]; size <= min(each[1], most); size += each[2] {
			if size != 64 || !padded || !drafts || s.since(0, 5, 5) {
				sizes = append(sizes, size)
			}
		}
	}
	if padded && s.since(0, 5, 10) && sizes[len(sizes)-1] != most {
		sizes = append(sizes, most)
	}
	return sizes
}

// promptGraphTokens are those of the largest graph of prompts; 0 without one.
func (s *resolver) promptGraphTokens() int64 {
	chunk := s.number("max_num_batched_tokens", s.MaxNumBatchedTokens)
	tokens := chunk
	if s.lookUp("prompt_graph_tokens") != "chunk" {
		tokens = min(s.number("prompt_graph_tokens", 0), chunk)
	}
	spread := s.EnableDPAttention || s.MoeA2aBackend == "deepep"
	if s.speculation.tokens > 0 && !s.since(0, 5, 11) || spread && !s.since(0, 5, 17) {
		return 0
	}
	return min(tokens, max(chunk/s.dataParallel, 1))
}
