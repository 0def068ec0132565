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

// Adapter is a sim.LatencyModel. It keeps nothing of the requests that it is asked about, so that
// simulated engines and goroutines can share one, and equal batches take equal times.
type Adapter struct {
	model   *pinn.Model
	options Options
}

// Options are settings of the simulated engine. For zero values those of the model's row are taken.
type Options struct {
	TokensPerStep int64 // limit of scheduled tokens
	BlockSize     int64 // of the KV cache in tokens

	// StepAheadUS is the mean step time of the load in microseconds, which [Adapter.QueueingTime]
	// adds: vLLM plans a batch while the one before runs, so that a newcomer to a busy engine waits
	// for one step more than in BLIS. Leave it at 0 for an engine that is idle between requests.
	StepAheadUS int64

	// SharedKeys returns the number of keys that a batch's decodes share with others and that are
	// read once. By default [LeadingBlocks] counts them where the row has prefix caching.
	SharedKeys func(batch []*sim.Request) int64
}

// New makes the adapter of a model.
//
// It fails for a model that speculates, since a request gets one token of each step in BLIS.
func New(model *pinn.Model, options Options) (*Adapter, error) {
	row := model.Row()
	if row.Drafts != nil {
		return nil, fmt.Errorf("BLIS decodes one token of a request in a step, and speculative_config "+
			"%s verifies %d: leave it out, or use 'pinn simulate'",
			row.Config["speculative_config"], row.Drafts.Tokens+1)
	}
	if options.TokensPerStep == 0 {
		options.TokensPerStep = number(row.Config["max_num_batched_tokens"], 0)
	}
	if options.BlockSize == 0 {
		options.BlockSize = number(row.Config["block_size"], 16)
	}
	if options.SharedKeys == nil && row.PrefixCaching {
		options.SharedKeys = LeadingBlocks(options.BlockSize)
	}
	return &Adapter{model: model, options: options}, nil
}

// number returns a positive number of a table's cell, and another value where it has none.
func number(text string, otherwise int64) int64 {
	if found, err := strconv.ParseInt(text, 10, 64); err == nil && found > 0 {
		return found
	}
	return otherwise
}

// StepTime returns the time of a batch's step in microseconds, at least 1. Keys that decodes share
// are read once, as far as the GPU's cache holds them. It allocates nothing.
func (a *Adapter) StepTime(batch []*sim.Request) int64 {
	sums := a.model.NewSums()
	window := a.model.Row().WindowTokens
	for rest := batch; len(rest) > 0; rest = rest[1:] {
		var d decoding
		if window == 0 {
			d = sumDecodes(rest)
		} else {
			d = sumWindowed(rest, window-1)
		}
		sums.AddDecodes(int64(d.count), d.context+int64(d.count), d.near+int64(d.count))
		if rest = rest[d.count:]; len(rest) == 0 {
			break
		}
		a.addPrefill(&sums, rest[0], len(rest) == 1)
	}
	if a.options.SharedKeys != nil && sums.DecodeRequests > 1 {
		a.model.Reread(&sums, a.options.SharedKeys(batch))
	}
	return max(pinn.Microseconds(a.model.StepSeconds(&sums)), 1)
}

// decoding has sums of the decodes that a batch begins with: how many they are, their progress, and
// as much of it as lies within the window.
type decoding struct {
	count         int
	context, near int64
}

// sumDecodes sums the decodes that a batch begins with for a model without a window. It calls nothing,
// so that sums stay in registers, and takes four requests at a time, like those below.
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

// sumWindowed sums them for a model with a window.
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

// nearOf returns the lesser number, in fewer instructions than the built-in min.
func nearOf(progress, reach int64) int64 {
	if progress > reach {
		return reach
	}
	return progress
}

// decodes tells whether a request's prompt is processed.
func decodes(r *sim.Request) bool { return r.ProgressIndex >= int64(len(r.InputTokens)) }

// addPrefill counts a chunk of a prompt. BLIS sets ProgressIndex only after the first chunk. Before
// it, the part of the prompt that is not computed lies in the cache if it has whole blocks, unless the
// request is the step's last and was cut because the step's tokens were spent.
func (a *Adapter) addPrefill(sums *pinn.Sums, r *sim.Request, isLast bool) {
	cached, chunk := r.ProgressIndex, int64(r.NumNewTokens)
	if rest := int64(len(r.InputTokens)) - chunk; cached == 0 && rest > 0 && rest%a.options.BlockSize == 0 &&
		!(isLast && sums.PrefillTokens+chunk+sums.DecodeRequests == a.options.TokensPerStep) {
		cached = rest
	}
	sums.AddPrefill(cached, chunk)
}

// QueueingTime returns the time of all that happens to a request before its first token beside BLIS's
// own queue and steps.
func (a *Adapter) QueueingTime(req *sim.Request) int64 {
	alpha := &a.model.Row().Alpha
	seconds := alpha.QueueingSeconds(int64(len(req.InputTokens))) + alpha.SchedulingSeconds()
	return pinn.Microseconds(seconds) + a.options.StepAheadUS
}

// OutputTokenProcessingTime returns 0: BLIS would add it to every gap between tokens, but the API
// server works on a token while the engine makes the next one.
func (a *Adapter) OutputTokenProcessingTime() int64 { return 0 }

// PostDecodeFixedOverhead returns the time at a request's completion.
func (a *Adapter) PostDecodeFixedOverhead() int64 {
	return pinn.Microseconds(a.model.Row().Alpha.Completion)
}

const (
	heads  = 64 // places for the first decode of each beginning in [LeadingBlocks], a power of two
	probes = 4  // places in which a beginning may be
)

// LeadingBlocks returns a function that counts the keys which a batch's decodes share in whole leading
// blocks of their prompts, as BLIS's cache does. It compares the last token of every block with those
// of the first decode that begins alike, and counts too little where more than some sixty prompts
// begin differently.
func LeadingBlocks(blockSize int64) func(batch []*sim.Request) int64 {
	return func(batch []*sim.Request) int64 {
		var firsts [heads]*sim.Request
		shared, last := int64(0), int(blockSize)-1
		for _, r := range batch {
			tokens := r.InputTokens
			if len(tokens) <= last || !decodes(r) {
				continue
			}
			place := (uint32(tokens[0])*31 + uint32(tokens[last])) * 2654435761 >> 26
			for range probes {
				first := firsts[place]
				if first == nil {
					firsts[place] = r
					break
				}
				if known := first.InputTokens; known[0] == tokens[0] && known[last] == tokens[last] {
					end := last
					for least := min(len(known), len(tokens)); end < least && known[end] == tokens[end]; {
						end += last + 1
					}
					shared += int64(end - last)
					break
				}
				place = (place + 1) % heads
			}
		}
		return shared
	}
}
