// Package blis makes a pinn latency model one of BLIS's.
//
// BLIS's module is not needed to build or test this package: go.mod replaces it by the small model
// of its engine in the folder simulator.
package blis

import (
	"fmt"
	"strconv"

	"example.com/pinn/export/go/pinn"

	"github.com/inference-sim/inference-sim/sim"
)

// Adapter is a sim.LatencyModel, and that of older trees, for one simulated engine. As BLIS asks
// it, it is not for concurrent use.
type Adapter struct {
	model         *pinn.Model
	tokensPerStep int64
	blockSize     int64
	sharedKeys    func(batch []*sim.Request) int64
	prompts       prompts
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

// New wraps a model; the adapter gets a clone of its own. It panics for a model that speculates,
// since a request has one token of each step in BLIS.
func New(model *pinn.Model, options ...Option) *Adapter {
	config := model.Row().Config
	if drafts := model.Row().Drafts; drafts != nil {
		panic(fmt.Sprintf("BLIS decodes one token of a request in a step, and speculative_config %s "+
			"verifies %d: leave it out, or take 'pinn simulate'",
			config["speculative_config"], drafts.Tokens+1))
	}
	a := &Adapter{
		model:         model.Clone(),
		tokensPerStep: number(config["max_num_batched_tokens"], 0),
		blockSize:     number(config["block_size"], 16),
	}
	for _, option := range options {
		option(a)
	}
	return a
}

func number(text string, otherwise int64) int64 {
	if found, err := strconv.ParseInt(text, 10, 64); err == nil && found > 0 {
		return found
	}
	return otherwise
}

// StepTime is the busy-loop time of the step of a batch, at least 1. What the batch's decodes have
// in common of their prompts is read once, as far as the GPU's cache holds it. It allocates nothing,
// but where prompts share blocks and other requests decode than in the last step.
func (a *Adapter) StepTime(batch []*sim.Request) int64 {
	sums := a.model.NewSums()
	for rest := batch; len(rest) > 0; {
		rest = rest[addDecodes(&sums, rest):]
		if len(rest) > 0 {
			r := rest[0]
			cached := r.ProgressIndex
			if cached == 0 {
				cached = a.cachedPrefix(r)
			}
			sums.AddPrefill(cached, int64(r.NumNewTokens))
			rest = rest[1:]
		}
	}
	if sums.PrefillCached > 0 && sums.PrefillTokens+sums.DecodeRequests == a.tokensPerStep {
		a.forgetLast(&sums, batch)
	}
	if a.sharedKeys != nil {
		sums.Reread(a.sharedKeys(batch))
	} else if a.prompts.alike {
		a.model.Share(&sums, a.prompts.sharedKeys(batch, a.blockSize, sums.PrefillRequests > 0))
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
	context += int64(count)
	near := int64(0)
	if window := sums.Window(); window > 0 {
		near = context
		if bits >= window { // else no context is as long
			near -= beyond(window, batch[:count])
		}
	}
	sums.AddDecodes(int64(count), context, near)
	return count
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
// steps. vLLM plans a batch while the one before runs, so that a newcomer waits for one step more
// than in BLIS.
//
// Here the adapter sees every prompt and whether any begins like another: only then are steps
// searched for keys that decodes share.
func (a *Adapter) QueueingTime(req *sim.Request) int64 {
	if a.model.Row().PrefixCaching {
		a.prompts.arrive(req, a.blockSize)
	}
	return a.model.FirstTokenDelay(float64(len(req.InputTokens)))
}

// OutputTokenProcessingTime is 0: BLIS would add it to every gap between tokens, but the API server
// works on a token while the engine makes the next one.
func (a *Adapter) OutputTokenProcessingTime() int64 { return 0 }

// PostDecodeFixedOverhead is the time once at completion.
func (a *Adapter) PostDecodeFixedOverhead() int64 { return a.model.PostDecodeFixedOverhead() }

// SchedulingProcessingTime is asked by older trees only; it is in QueueingTime already.
func (a *Adapter) SchedulingProcessingTime() int64 { return 0 }

// PreemptionProcessingTime is asked by older trees only: per preemption, of the mean prompt.
func (a *Adapter) PreemptionProcessingTime() int64 { return a.model.PreemptionProcessingTime() }
