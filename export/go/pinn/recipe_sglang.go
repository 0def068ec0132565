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
	captured := s.sglangSizes(limit, padded)
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

// sglangSizes are the numbers of decodes that graphs are captured for, as sglang_sizes of Python's
// pinn.engines.vllm_sglang_trtllm.
func (s *resolver) sglangSizes(most int64, padded bool) []int64 {
	var sizes []int64
	add := func(first, last, step int64) {
		for size := first; size <= min(last, most); size += step {
			sizes = append(sizes, size)
		}
	}
	switch {
	case !padded:
		add(1, most, 1)
		return sizes
	case s.speculation.tokens > 0:
		add(1, 8, 1)
		add(10, 32, 2)
		add(40, 60, 4)
		if s.since(0, 5, 5) {
			add(64, 64, 1)
		}
		add(72, 256, 8)
		add(272, most, 16)
	default:
		add(1, 2, 1)
		add(4, 12, 4)
		add(16, 256, 8)
		add(272, 511, 16)
		add(512, most, 32)
	}
	if s.since(0, 5, 10) && sizes[len(sizes)-1] != most {
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
