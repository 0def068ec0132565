package pinn

import (
	"fmt"
	"strconv"
	"strings"
)

// Drafts are what speculative decoding adds to a row: every decode comes with drafted tokens, which
// a step verifies.
type Drafts struct {
	Tokens   int64 // drafted of each request
	Passes   int64 // of the draft in a step; 0 where nothing runs on the GPU
	Branches int64 // of a request in each pass but the first
	Costs    Costs // of a pass of the draft, as if it were the model

	// Acceptance is by position the chance that a drafted token is accepted given that those before
	// it were.
	Acceptance []float64
}

// TokensPerStep are those that a request gets of a step in the mean.
func (d *Drafts) TokensPerStep() float64 {
	total, chance := 1.0, 1.0
	for _, rate := range d.Acceptance {
		chance *= rate
		total += chance
	}
	return total
}

// readRates of acceptance with commas between them.
func readRates(name, text string) (rates []float64, err error) {
	for _, word := range strings.Split(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		rate, err := strconv.ParseFloat(word, 64)
		if err != nil || !(rate >= 0 && rate <= 1) {
			return nil, fmt.Errorf("%s must be rates from 0 to 1 with commas between them, got %q", name, text)
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

func (d *Drafts) check(where string) error {
	if d.Tokens < 1 || d.Tokens > mostDrafted || d.Passes < 0 || d.Passes > mostDrafted ||
		d.Branches < 1 || d.Branches > mostDrafted {
		return fmt.Errorf("%s: drafted tokens and branches must be 1 to %d and passes 0 to %d, got "+
			"%d, %d and %d", where, mostDrafted, mostDrafted, d.Tokens, d.Branches, d.Passes)
	}
	if len(d.Acceptance) == 0 || int64(len(d.Acceptance)) > d.Tokens {
		return fmt.Errorf("%s: %d drafted tokens have %d rates of acceptance", where, d.Tokens,
			len(d.Acceptance))
	}
	for _, rate := range d.Acceptance {
		if !(rate >= 0 && rate <= 1) {
			return fmt.Errorf("%s: a rate of acceptance must be 0 to 1, got %v", where, rate)
		}
	}
	if d.Passes > 0 && d.Costs.Layers == 0 {
		return fmt.Errorf("%s: %d passes of a draft without draft_cost.layers", where, d.Passes)
	}
	return d.Costs.check(where, draftCost)
}

// drafting times the passes of a step that drafts and verifies, as Python's
// pinn.surrogate.deployment_features: one of the model, a first of the draft over the same tokens, and
// further ones.
type drafting struct {
	tokens, branches int64
	passes           [3]*pass
	times            [3]float64
	step, request    float64 // once a step, however many passes it has
}

func newDrafting(row *Row) *drafting {
	d, betas := row.Drafts, [numStepFeatures]float64(row.Beta)
	betas[fStep], betas[fRequest] = 0, 0
	rows := float64(d.Tokens + 1)
	made := &drafting{
		tokens: d.Tokens, branches: d.Branches, times: [3]float64{1},
		step: row.Beta[fStep], request: row.Beta[fRequest],
	}
	made.passes[0] = newPass(row.Costs.withQueries(rows, rows), &betas)
	if d.Passes > 0 {
		made.passes[1] = newPass(d.Costs.withQueries(rows, 1), &betas)
		made.passes[2] = newPass(d.Costs.withQueries(1, float64(d.Branches)), &betas)
		made.times[1], made.times[2] = 1, float64(d.Passes-1)
	}
	return made
}

// withQueries are costs where a key meets so many queries of a request and a graph's request has
// such rows.
func (c Costs) withQueries(queries, rows float64) Costs {
	c.DecodePair *= queries
	c.WindowedDecodePair *= queries
	c.GraphRequests *= rows
	return c
}

// seconds of a step whose decodes count once each, however many tokens they verify.
func (d *drafting) seconds(s *Sums) float64 {
	requests := s.PrefillRequests + s.DecodeRequests
	if requests == 0 {
		return 0
	}
	total, sums := d.step+d.request*float64(requests), d.sums(s)
	for i, times := range d.times {
		if times > 0 {
			total += times * d.passes[i].seconds(&sums[i])
		}
	}
	return total
}

// features likewise: the sum of all passes'.
func (d *drafting) features(s *Sums, f *[numStepFeatures]float64) {
	sums := d.sums(s)
	for i, times := range d.times {
		if times > 0 {
			var one [numStepFeatures]float64
			stepValues(&d.passes[i].costs, &sums[i], &one)
			for j, value := range one {
				f[j] += times * value
			}
		}
	}
	var once [numStepFeatures]float64
	stepValues(&d.passes[0].costs, s, &once)
	f[fStep], f[fRequest] = once[fStep], once[fRequest]
}

// sums of what goes through each pass.
func (d *drafting) sums(s *Sums) [3]Sums {
	all := *s
	if all.window == 0 { // a draft may have a window where the model has none
		all.WindowedDecodeContext = all.DecodeContext
		all.WindowedPrefillCached = all.PrefillCached
		all.WindowedPrefillPairs = all.PrefillPairs
	}
	added := all.DecodeRequests * d.tokens
	verified := all
	verified.DecodeRequests += added
	verified.DecodeContext += added
	verified.WindowedDecodeContext += added
	first := all
	first.PrefillTokens += added
	first.DecodeContext += added
	first.WindowedDecodeContext += added
	known := all.DecodeContext + all.PrefillCached + all.PrefillTokens
	near := all.WindowedDecodeContext + all.WindowedPrefillCached + all.PrefillTokens
	return [3]Sums{verified, first, {
		DecodeRequests:        d.branches * (all.PrefillRequests + all.DecodeRequests),
		DecodeContext:         d.branches * known,
		WindowedDecodeContext: d.branches * near,
	}}
}
