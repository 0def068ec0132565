package pinn

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
	if progress < input {
		s.AddPrefill(progress, newTokens)
	} else {
		s.AddDecode(progress)
	}
}

// AddDecode is [Sums.Add] of a request that generates; the compiler inlines it.
func (s *Sums) AddDecode(progress int64) {
	keys := max(progress, 0) + 1
	s.DecodeRequests++
	s.DecodeContext += keys
	s.WindowedDecodeContext += min(keys, s.window)
}

// AddPrefill is [Sums.Add] of a request that works on its prompt.
func (s *Sums) AddPrefill(progress, newTokens int64) {
	progress, newTokens = max(progress, 0), max(newTokens, 0)
	s.PrefillRequests++
	s.PrefillTokens += newTokens
	s.PrefillCached += progress
	s.PrefillPairs += newTokens*progress + pairs(newTokens)
	s.WindowedPrefillCached += min(progress, s.window)
	s.WindowedPrefillPairs += windowedPairs(progress+newTokens, s.window) -
		windowedPairs(progress, s.window)
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

// addDecodes counts the decodes that a batch begins with and returns their number. The loop calls
// nothing, so that its sums stay in registers.
func (s *Sums) addDecodes(batch []*Request) int {
	count, window := len(batch), s.window
	var context, near int64
	for i, r := range batch {
		progress := r.ProgressIndex
		if progress < r.InputLen || progress < 0 {
			count = i
			break
		}
		context += progress + 1
		near += min(progress+1, window)
	}
	s.DecodeRequests += int64(count)
	s.DecodeContext += context
	s.WindowedDecodeContext += near
	return count
}

// pairs of the first n tokens of a sequence, each also with itself.
func pairs(n int64) int64 { return n * (n + 1) / 2 }

// windowedPairs of the first n tokens, where a token sees at most window keys.
func windowedPairs(n, window int64) int64 {
	inside := min(n, window)
	return pairs(inside) + (n-inside)*inside
}
