package pinn

import "slices"

// Request is what a simulator knows of a request when a step begins.
type Request struct {
	ProgressIndex int64 // tokens, of prompt and output, whose keys and values are cached
	NumNewTokens  int64 // tokens scheduled in this step
	InputLen      int64 // prompt tokens
}

// Sums are sums over a batch's requests: all that the step features need of it. [Model.NewSums]
// makes those of an empty batch.
//
// A pair is a query token and a key token that causal attention combines. The windowed fields
// count only keys within the model's attention window, and stay 0 without one.
type Sums struct {
	PrefillRequests       int64
	DecodeRequests        int64
	PrefillTokens         int64
	DecodeContext         int64 // keys that decodes read, each its own new one included
	PrefillCached         int64 // keys that prefill chunks read from the cache
	PrefillPairs          int64
	WindowedDecodeContext int64
	WindowedPrefillCached int64
	WindowedPrefillPairs  int64
	LongestPrefill        int64 // keys of the prefill chunk with the most keys: cached and new tokens

	window  int64 // 0 for none
	padding int64 // rows that pad a batch of decodes to the size of a CUDA graph
}

// Add counts a request: a prefill while its progress is less than its prompt, else a decode of one
// token. Negative numbers count as 0.
func (s *Sums) Add(r Request) {
	if r.ProgressIndex < r.InputLen {
		s.AddPrefill(r.ProgressIndex, r.NumNewTokens)
		return
	}
	keys := max(r.ProgressIndex, 0) + 1
	s.AddDecodes(1, keys, min(keys, s.window))
}

// AddPrefill counts a chunk of newTokens of a prompt behind its cached tokens.
func (s *Sums) AddPrefill(cached, newTokens int64) {
	cached, newTokens = max(cached, 0), max(newTokens, 0)
	s.PrefillRequests++
	s.PrefillTokens += newTokens
	s.PrefillCached += cached
	s.PrefillPairs += newTokens*cached + pairs(newTokens)
	s.LongestPrefill = max(s.LongestPrefill, cached+newTokens)
	if s.window > 0 {
		s.WindowedPrefillCached += min(cached, s.window)
		s.WindowedPrefillPairs += windowedPairs(cached+newTokens, s.window) -
			windowedPairs(cached, s.window)
	}
}

// AddDecodes counts several decodes at once, which read so many keys together, each its own new one
// included; near of the keys lie within the window, 0 without one.
func (s *Sums) AddDecodes(count, keys, near int64) {
	s.DecodeRequests += count
	s.DecodeContext += keys
	s.WindowedDecodeContext += near
}

// padded returns the sums with rows up to the size of the CUDA graph that the batch replays: the
// smallest of the sizes, in ascending order, that has a row for each decode. Batches with prompts and
// batches larger than the largest graph are not padded.
func (s *Sums) padded(sizes []int64) Sums {
	found := *s
	if s.DecodeRequests == 0 || s.PrefillRequests > 0 {
		return found
	}
	if i, _ := slices.BinarySearch(sizes, s.DecodeRequests); i < len(sizes) {
		found.padding = sizes[i] - s.DecodeRequests
	}
	return found
}

// rows returns the rows that pass through all layers.
func (s *Sums) rows() int64 { return s.PrefillTokens + s.DecodeRequests + s.padding }

// Reread takes out keys that decodes share with others and find in the GPU's cache.
func (s *Sums) Reread(keys int64) {
	keys = min(max(keys, 0), s.DecodeContext)
	if keys == 0 {
		return
	}
	if s.WindowedDecodeContext > 0 {
		left := float64(s.DecodeContext-keys) / float64(s.DecodeContext)
		s.WindowedDecodeContext = int64(float64(s.WindowedDecodeContext)*left + 0.5)
	}
	s.DecodeContext -= keys
}

// pairs returns the pairs of the first n tokens of a sequence.
func pairs(n int64) int64 { return n * (n + 1) / 2 }

// windowedPairs returns those of them within the window.
func windowedPairs(n, window int64) int64 {
	inside := min(n, window)
	return pairs(inside) + (n-inside)*inside
}
