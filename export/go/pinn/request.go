package pinn

import "math"

// Request is what a simulator knows of a request when a step begins.
type Request struct {
	ProgressIndex int64 // tokens whose keys and values are there: processed prompt and output
	NumNewTokens  int64 // tokens scheduled in this step
	InputLen      int64 // prompt tokens
}

// Sums are sums over a batch's requests: all that a step's features need to know of it.
//
// A pair is a (query token, key token) that causal attention combines. The windowed fields count
// only keys within the model's attention window and are left 0 without one. The zero value is an
// empty batch of a model without a window; [Model.NewSums] makes one for a model.
type Sums struct {
	PrefillRequests       int64
	DecodeRequests        int64
	PrefillTokens         int64
	DecodeContext         int64 // keys that decodes read, their own new one included
	PrefillCached         int64 // keys that prefill chunks read from the cache
	PrefillPairs          int64
	WindowedDecodeContext int64
	WindowedPrefillCached int64
	WindowedPrefillPairs  int64

	window int64 // 0 for none
}

// Add counts one request. It works on its prompt while progress < input, and generates one token
// otherwise. Negative numbers, which no simulator should pass, count as 0.
func (s *Sums) Add(progress, newTokens, input int64) {
	progress = max(progress, 0)
	if progress >= input {
		s.DecodeRequests++
		s.DecodeContext += progress + 1
		if s.window != 0 {
			s.WindowedDecodeContext += min(progress+1, s.window)
		}
		return
	}
	newTokens = max(newTokens, 0)
	s.PrefillRequests++
	s.PrefillTokens += newTokens
	s.PrefillCached += progress
	s.PrefillPairs += newTokens*progress + pairs(newTokens)
	if s.window != 0 {
		s.WindowedPrefillCached += min(progress, s.window)
		s.WindowedPrefillPairs += windowedPairs(progress+newTokens, s.window) -
			windowedPairs(progress, s.window)
	}
}

// addBatch counts every request of a batch: as [Sums.Add], but runs of decodes, the bulk of most
// batches, in a loop of their own.
func (s *Sums) addBatch(batch []*Request) {
	for len(batch) > 0 {
		batch = batch[s.addDecodes(batch):]
		if len(batch) > 0 {
			r := batch[0]
			s.Add(r.ProgressIndex, r.NumNewTokens, r.InputLen)
			batch = batch[1:]
		}
	}
}

// addDecodes counts the decodes that a batch begins with and returns their number.
func (s *Sums) addDecodes(batch []*Request) int {
	before := int64(math.MaxInt64)
	if s.window != 0 {
		before = s.window - 1
	}
	count := len(batch)
	var context, near int64
	for i, r := range batch {
		progress := r.ProgressIndex
		if progress < r.InputLen || progress < 0 {
			count = i
			break
		}
		context += progress
		near += min(progress, before)
	}
	decodes := int64(count)
	s.DecodeRequests += decodes
	s.DecodeContext += context + decodes
	if s.window != 0 {
		s.WindowedDecodeContext += near + decodes
	}
	return count
}

// pairs of the first n tokens of a sequence, each also with itself.
func pairs(n int64) int64 { return n * (n + 1) / 2 }

// windowedPairs of the first n tokens, where a token sees at most window keys.
func windowedPairs(n, window int64) int64 {
	inside := min(n, window)
	return pairs(inside) + (n-inside)*inside
}
