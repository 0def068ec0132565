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
		prompts:       prompts{ages: ages{window: model.Row().WindowTokens}},
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
	sums, p := a.model.NewSums(), &a.prompts
	window, followed := sums.Window(), p.alike && a.sharedKeys == nil
	if followed {
		p.begin()
	}
	at := 0
	for rest := batch; len(rest) > 0; {
		var d decoding
		if followed {
			d = p.sumKnown(rest, at)
			at += d.count
		} else if window == 0 {
			d = sumDecodes(rest)
		} else {
			d = sumWindowed(rest, window-1)
		}
		sums.AddDecodes(int64(d.count), d.context+int64(d.count), d.near+int64(d.count))
		if rest = rest[d.count:]; len(rest) == 0 {
			break
		}
		if r := rest[0]; !decodes(r) {
			a.addPrefill(&sums, r, len(rest) == 1)
			rest = rest[1:]
		} else {
			p.follow(rest, at, a.blockSize)
		}
	}
	if a.sharedKeys != nil {
		sums.Reread(a.sharedKeys(batch))
	} else if followed {
		count := sums.DecodeRequests
		sums.WindowedDecodeContext = count + p.end(at, sums.DecodeContext-count)
		a.model.Share(&sums, p.shared*a.blockSize)
	}
	return a.model.StepTimeOf(&sums)
}

// decoding is what the decodes at a batch's beginning come to: how many they are, their progress added
// up, and what of each is within reach.
type decoding struct {
	count         int
	context, near int64
}

// sumDecodes adds the decodes up that a batch begins with, for a model without a window. It calls
// nothing, so that sums stay in registers, and takes four requests at a time, as others below.
func sumDecodes(batch []*sim.Request) decoding {
	count, context := 0, int64(0)
	for ; count < len(batch)-3; count += 4 {
		a, b, c, d := batch[count], batch[count+1], batch[count+2], batch[count+3]
		if !decodes(a) || !decodes(b) || !decodes(c) || !decodes(d) {
			break
		}
		context += a.ProgressIndex + b.ProgressIndex + (c.ProgressIndex + d.ProgressIndex)
	}
	for ; count < len(batch) && decodes(batch[count]); count++ {
		context += batch[count].ProgressIndex
	}
	return decoding{count, context, -int64(count)}
}

// sumWindowed does so for a model with one.
func sumWindowed(batch []*sim.Request, reach int64) decoding {
	count, context, near := 0, int64(0), int64(0)
	for ; count < len(batch)-3; count += 4 {
		a, b, c, d := batch[count], batch[count+1], batch[count+2], batch[count+3]
		if !decodes(a) || !decodes(b) || !decodes(c) || !decodes(d) {
			break
		}
		i, j, k, l := a.ProgressIndex, b.ProgressIndex, c.ProgressIndex, d.ProgressIndex
		context += i + j + (k + l)
		near += nearOf(i, reach) + nearOf(j, reach) + (nearOf(k, reach) + nearOf(l, reach))
	}
	for ; count < len(batch) && decodes(batch[count]); count++ {
		context += batch[count].ProgressIndex
		near += nearOf(batch[count].ProgressIndex, reach)
	}
	return decoding{count, context, near}
}

// nearOf is the lesser; the compiler makes more of max.
func nearOf(progress, reach int64) int64 {
	if progress > reach {
		return reach
	}
	return progress
}

// decodes tells whether a request has its prompt behind it.
func decodes(r *sim.Request) bool { return r.ProgressIndex >= int64(len(r.InputTokens)) }

// addPrefill counts a chunk of a prompt. BLIS sets ProgressIndex only after the first; before it, what
// is not to be computed of a prompt is what its cache holds, if these are whole blocks and the step's
// last request was not cut off where its tokens were spent.
func (a *Adapter) addPrefill(sums *pinn.Sums, r *sim.Request, isLast bool) {
	cached, chunk := r.ProgressIndex, int64(r.NumNewTokens)
	if rest := int64(len(r.InputTokens)) - chunk; cached == 0 && rest > 0 && rest%a.blockSize == 0 &&
		!(isLast && sums.PrefillTokens+chunk+sums.DecodeRequests == a.tokensPerStep) {
		cached = rest
	}
	sums.AddPrefill(cached, chunk)
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
