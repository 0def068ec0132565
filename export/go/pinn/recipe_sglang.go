package pinn

import "strconv"

// sglangGraphs are those of SGLang: decodes up to a size, and from 0.5.10 on prompts up to a number
// of tokens, as Python's pinn.specs.recipe_sglang.
func (s Serving) sglangGraphs(r *recipe, g placed, limit, seqs int64, padded bool) error {
	number := release(s.EngineVersion)
	if s.MaxNumSeqs > 0 {
		if s.MaxCudagraphCaptureSize == 0 && !before(number, []int64{0, 5, 22}) {
			limit = min(limit, seqs)
		}
		seqs = max(seqs/r.dataParallel, 1)
	} else if r.speculation.tokens > 0 {
		seqs = max(sglangSpeculatingRequests/r.dataParallel, 1)
	}
	r.graphRequests = s.largestDecodes(r, limit, seqs, padded, number)
	tokens, err := s.promptGraphTokens(r, g, number)
	r.graphTokens = max(tokens, 1)
	return err
}

// sglangSpeculatingRequests run where tokens are drafted and nobody says how many.
const sglangSpeculatingRequests = 48

// largestDecodes is the largest number of decodes that is captured: no more than may run, and with
// attention data parallelism a multiple of the GPUs that share an attention layer.
func (s Serving) largestDecodes(
	r *recipe, limit, most int64, padded bool, number []int64,
) int64 {
	captured := sglangSizes(limit, r.speculation.tokens > 0, padded, number)
	last := captured[len(captured)-1]
	if last > most {
		var fewer []int64
		for _, size := range captured {
			if size < most {
				fewer = append(fewer, size)
			}
		}
		captured, last = append(fewer, most), most
	}
	if !s.EnableDPAttention {
		return last
	}
	for i := len(captured) - 1; i >= 0; i-- {
		if captured[i]%r.tensorParallel == 0 {
			return captured[i]
		}
	}
	return last
}

// sglangSizes are the numbers of decodes that graphs are captured for, as sglang_sizes of Python's
// pinn.specs.graph_sizes.
func sglangSizes(most int64, drafts, padded bool, number []int64) []int64 {
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
	case drafts:
		add(1, 8, 1)
		add(10, 32, 2)
		add(40, 60, 4)
		if !before(number, []int64{0, 5, 5}) {
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
	if !before(number, []int64{0, 5, 10}) && sizes[len(sizes)-1] != most {
		sizes = append(sizes, most)
	}
	return sizes
}

// promptGraphTokens are those of the largest graph of prompts; 0 without one.
func (s Serving) promptGraphTokens(r *recipe, g placed, number []int64) (int64, error) {
	chunk, err := s.number("max_num_batched_tokens", s.MaxNumBatchedTokens, g)
	if err != nil {
		return 0, err
	}
	found, err := s.lookUp("prompt_graph_tokens", g)
	if err != nil {
		return 0, err
	}
	tokens := chunk
	if found != "chunk" {
		if tokens, err = strconv.ParseInt(found, 10, 64); err != nil {
			return 0, err
		}
		tokens = min(tokens, chunk)
	}
	whole := !s.EnableDPAttention && s.MoeA2aBackend != "deepep"
	drafts := r.speculation.tokens > 0
	if (drafts && before(number, []int64{0, 5, 11})) || (!whole && before(number, []int64{0, 5, 17})) {
		return 0, nil
	}
	return min(tokens, max(chunk/r.dataParallel, 1)), nil
}
