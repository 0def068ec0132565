// Package blis makes a pinn latency model one of BLIS's.
//
// BLIS's module is not needed to build or test this package: go.mod replaces it by the small model
// of its engine that the tests bring.
package blis

import (
	"fmt"
	"strconv"

	"example.com/pinn/export/go/pinn"

	"github.com/inference-sim/inference-sim/sim"
)

// Adapter is a sim.LatencyModel for one simulated engine. As BLIS asks it, it is not for concurrent
// use.
type Adapter struct {
	model         *pinn.Model
	tokensPerStep int64
	blockSize     int64
	sharedKeys    func(batch []*sim.Request) int64
	prompts       prompts
	inFlight      int64 // requests that have arrived and not completed
}

// An Option tells an adapter of the engine that it is for.
type Option func(*Adapter)

// TokensPerStep is the engine's limit of scheduled tokens; by default what the model's row says, or
// none.
func TokensPerStep(tokens int64) Option { return func(a *Adapter) { a.tokensPerStep = tokens } }

// BlockSize is that of the engine's KV cache; by default what the model's row says, or 16.
func BlockSize(tokens int64) Option { return func(a *Adapter) { a.blockSize = tokens } }

// SharedKeys tells how many keys of a batch's decodes are shared with others and read once already,
// where the simulator knows it better than their prompts tell.
func SharedKeys(count func(batch []*sim.Request) int64) Option {
	return func(a *Adapter) { a.sharedKeys = count }
}

// New wraps a model; the adapter gets a clone of its own.
//
// It fails for a model that speculates, since a request has one token of each step in BLIS.
func New(model *pinn.Model, options ...Option) (*Adapter, error) {
	config := model.Row().Config
	if drafts := model.Row().Drafts; drafts != nil {
		return nil, fmt.Errorf("BLIS decodes one token of a request in a step, and speculative_config "+
			"%s verifies %d: leave it out, or take 'pinn simulate'",
			config["speculative_config"], drafts.Tokens+1)
	}
	a := &Adapter{
		model:         model.Clone(),
		tokensPerStep: number(config["max_num_batched_tokens"], 0),
		blockSize:     number(config["block_size"], 16),
	}
	for _, option := range options {
		option(a)
	}
	return a, nil
}

// Load makes an adapter of a table's only row of what a simulation serves, so that the table of
// another model is refused.
//
// It fails where the file cannot be read, a name is empty or no row or several fit.
func Load(table, model, gpu string, tensorParallel int, options ...Option) (*Adapter, error) {
	found, err := pinn.LoadModel(table, map[string]string{
		"model": model, "gpu": gpu, "tensor_parallel_size": strconv.Itoa(tensorParallel),
	})
	if err != nil {
		return nil, err
	}
	return New(found, options...)
}

func number(text string, otherwise int64) int64 {
	if found, err := strconv.ParseInt(text, 10, 64); err == nil && found > 0 {
		return found
	}
	return otherwise
}

// StepTime is the busy-loop time of the step of a batch, at least 1. What the batch's decodes have
// in common of their prompts is read once, as far as the GPU's cache holds it. It allocates nothing,
// but where a request decodes whose arrival [Adapter.QueueingTime] was not told.
func (a *Adapter) StepTime(batch []*sim.Request) int64 {
	sums := a.model.NewSums()
	followed := a.prompts.alike && a.sharedKeys == nil
	at := 0
	for rest := batch; len(rest) > 0; {
		count := 0
		if followed {
			count = addFollowed(&sums, rest, a.prompts.decodes[at:], a.prompts.longest)
			at += count
		} else {
			count = addDecodes(&sums, rest)
		}
		if rest = rest[count:]; len(rest) == 0 {
			break
		}
		if r := rest[0]; !decodes(r) {
			cached := r.ProgressIndex
			if cached == 0 {
				cached = a.cachedPrefix(r)
			}
			sums.AddPrefill(cached, int64(r.NumNewTokens))
		} else {
			sums.AddDecode(r.ProgressIndex)
			a.prompts.follow(rest, at, a.blockSize)
			at++
		}
		rest = rest[1:]
	}
	if sums.PrefillCached > 0 && sums.PrefillTokens+sums.DecodeRequests == a.tokensPerStep {
		a.forgetLast(&sums, batch)
	}
	if a.sharedKeys != nil {
		sums.Reread(a.sharedKeys(batch))
	} else if followed {
		a.prompts.end(at)
		a.model.Share(&sums, a.prompts.shared*a.blockSize)
	}
	return a.model.StepTimeOf(&sums)
}

// addDecodes counts the decodes that a batch begins with and returns their number. The loop calls
// nothing, so that its sums stay in registers, and takes four requests at a time.
func addDecodes(sums *pinn.Sums, batch []*sim.Request) int {
	var context, bits int64
	count := 0
	for ; count+4 <= len(batch); count += 4 {
		four := batch[count : count+4 : count+4]
		a, b, c, d := four[0], four[1], four[2], four[3]
		if !decodes(a) || !decodes(b) || !decodes(c) || !decodes(d) {
			break
		}
		context += a.ProgressIndex + b.ProgressIndex + (c.ProgressIndex + d.ProgressIndex)
		bits |= a.ProgressIndex | b.ProgressIndex | (c.ProgressIndex | d.ProgressIndex)
	}
	for ; count < len(batch) && decodes(batch[count]); count++ {
		context += batch[count].ProgressIndex
		bits |= batch[count].ProgressIndex
	}
	addRun(sums, batch[:count], context, bits)
	return count
}

// addFollowed is addDecodes as far as the decodes are those of the last step. One that has more
// tokens than the longest prompt has its own behind it.
func addFollowed(sums *pinn.Sums, batch, last []*sim.Request, longest int64) int {
	var context, bits int64
	count := 0
	last = last[:min(len(last), len(batch))]
	for ; count+4 <= len(last); count += 4 {
		four, same := batch[count:count+4:count+4], last[count:count+4:count+4]
		a, b, c, d := four[0], four[1], four[2], four[3]
		if a != same[0] || b != same[1] || c != same[2] || d != same[3] {
			break
		}
		i, j, k, l := a.ProgressIndex, b.ProgressIndex, c.ProgressIndex, d.ProgressIndex
		if (i-longest)|(j-longest)|(k-longest)|(l-longest) < 0 && !(decodes(a) && decodes(b) && decodes(c) && decodes(d)) {
			break
		}
		context += i + j + (k + l)
		bits |= i | j | (k | l)
	}
	for ; count < len(last) && batch[count] == last[count] && decodes(batch[count]); count++ {
		context += batch[count].ProgressIndex
		bits |= batch[count].ProgressIndex
	}
	addRun(sums, batch[:count], context, bits)
	return count
}

// addRun counts decodes whose progress adds up to context and has such bits.
func addRun(sums *pinn.Sums, decodes []*sim.Request, context, bits int64) {
	context += int64(len(decodes))
	near := int64(0)
	if window := sums.Window(); window > 0 {
		near = context
		if bits >= window { // else no context is as long
			near -= beyond(window, decodes)
		}
	}
	sums.AddDecodes(int64(len(decodes)), context, near)
}

// decodes tells whether a request has its prompt behind it.
func decodes(r *sim.Request) bool { return r.ProgressIndex >= int64(len(r.InputTokens)) }

// beyond counts the keys of decodes outside of a window.
func beyond(window int64, decodes []*sim.Request) int64 {
	var keys int64
	for _, r := range decodes {
		keys += max(r.ProgressIndex+1-window, 0)
	}
	return keys
}

// cachedPrefix is what BLIS's cache holds of a newcomer's prompt: all that is not to be computed,
// if these are whole blocks. BLIS sets ProgressIndex only after the step.
func (a *Adapter) cachedPrefix(r *sim.Request) int64 {
	rest := int64(len(r.InputTokens)) - int64(r.NumNewTokens)
	if rest%a.blockSize != 0 {
		return 0
	}
	return rest
}

// forgetLast takes back the cached prefix of the last newcomer of a step whose tokens are spent:
// what it lacks was cut off.
func (a *Adapter) forgetLast(sums *pinn.Sums, batch []*sim.Request) {
	last := batch[len(batch)-1]
	if last.ProgressIndex == 0 {
		sums.RemovePrefill(a.cachedPrefix(last), int64(last.NumNewTokens))
		sums.AddPrefill(0, int64(last.NumNewTokens))
	}
}

// QueueingTime is all that happens to a request before its first token beside BLIS's own queue and
// steps. vLLM plans a batch while the one before runs, so that a newcomer to a busy engine waits for
// one step more than in BLIS.
//
// Here the adapter sees every prompt and whether any begins like another: only then are steps
// searched for keys that decodes share.
func (a *Adapter) QueueingTime(req *sim.Request) int64 {
	if a.model.Row().PrefixCaching {
		a.prompts.arrive(req, a.blockSize)
	}
	a.inFlight++
	return a.model.FirstTokenDelay(float64(len(req.InputTokens)), a.inFlight > 1)
}

// OutputTokenProcessingTime is 0: BLIS would add it to every gap between tokens, but the API server
// works on a token while the engine makes the next one.
func (a *Adapter) OutputTokenProcessingTime() int64 { return 0 }

// PostDecodeFixedOverhead is the time once at completion, which is when BLIS asks for it.
func (a *Adapter) PostDecodeFixedOverhead() int64 {
	a.inFlight = max(a.inFlight-1, 0)
	return a.model.PostDecodeFixedOverhead()
}
