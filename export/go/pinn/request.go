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
	if s.window > 0 {
		s.WindowedPrefillCached += min(progress, s.window)
		s.WindowedPrefillPairs += windowedPairs(progress+newTokens, s.window) -
			windowedPairs(progress, s.window)
	}
}

// Window is the attention window of the model that the sums are for, 0 for none.
func (s *Sums) Window() int64 { return s.window }

// AddDecodes counts many decodes at once: how many, and the keys that they read together, their own
// new ones included; near of them lie within the window, 0 without one.
func (s *Sums) AddDecodes(count, context, near int64) {
	s.DecodeRequests += count
	s.DecodeContext += context
	s.WindowedDecodeContext += near
}

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

// AddAll counts every request of a batch.
func (s *Sums) AddAll(batch []*Request) {
	for _, r := range batch {
		s.Add(r.ProgressIndex, r.NumNewTokens, r.InputLen)
	}
}

// pairs of the first n tokens of a sequence, each also with itself.
func pairs(n int64) int64 { return n * (n + 1) / 2 }

// windowedPairs of the first n tokens, where a token sees at most window keys.
func windowedPairs(n, window int64) int64 {
	inside := min(n, window)
	return pairs(inside) + (n-inside)*inside
}
