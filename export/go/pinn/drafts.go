package pinn

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Drafts are what speculative decoding adds to a row: every decode comes with drafted tokens, which
// the step verifies.
type Drafts struct {
	Tokens   int64 // drafted per request
	Passes   int64 // of the draft model per step; 0 where nothing drafts on the GPU
	Branches int64 // per request in each pass but the first
	Costs    Costs // of a pass of the draft model

	// Acceptance has by position the probability that a drafted token is accepted, given that those
	// before it were.
	Acceptance []float64
}

// mostDrafted is the largest number of drafted tokens, passes or branches.
const mostDrafted = 64

// draftCounts are the columns of the whole numbers of Drafts.
var draftCounts = [...]string{"draft.tokens", "draft.passes", "draft.branches"}

// TokensPerStep returns the mean number of tokens that a request gets of a step.
func (d *Drafts) TokensPerStep() float64 {
	total, probability := 1.0, 1.0
	for _, rate := range d.Acceptance {
		probability *= rate
		total += probability
	}
	return total
}

// counts are the whole numbers of d, in the order of draftCounts.
func (d *Drafts) counts() [3]*int64 { return [3]*int64{&d.Tokens, &d.Passes, &d.Branches} }

// readDrafts sets Drafts from Config and the costs that were read, or to nil where a row has none.
func (r *Row) readDrafts() (err error) {
	if r.Config[draftCounts[0]] == "" {
		r.Drafts = nil
		return nil
	}
	for i, count := range r.Drafts.counts() {
		if *count, err = r.whole(draftCounts[i]); err != nil {
			return err
		}
	}
	for _, word := range strings.Split(r.Config["draft_acceptance"], ",") {
		rate, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
		if err != nil {
			return refused("draft_acceptance", "rates with commas between them", word)
		}
		r.Drafts.Acceptance = append(r.Drafts.Acceptance, rate)
	}
	return nil
}

// check returns an error that names what cannot be; costs are checked with the row's.
func (d *Drafts) check() error {
	for i, count := range d.counts() {
		least := []int64{1, 0, 1}[i]
		if *count < least || *count > mostDrafted {
			return refused(draftCounts[i], fmt.Sprintf("%d to %d", least, mostDrafted), *count)
		}
	}
	if int64(len(d.Acceptance)) > d.Tokens || len(d.Acceptance) == 0 ||
		!(slices.Min(d.Acceptance) >= 0 && slices.Max(d.Acceptance) <= 1) {
		return refused("draft_acceptance", fmt.Sprintf("1 to %d rates from 0 to 1", d.Tokens), d.Acceptance)
	}
	if d.Passes > 0 && d.Costs.Layers == 0 {
		return refused("draft_cost.layers", "positive where draft.passes is", 0)
	}
	return nil
}

// stepTimer times steps. With speculative decoding a step has a pass of the model, a first one of the
// draft over the same tokens, and further ones; without it, one pass.
type stepTimer struct {
	tokens, branches int64 // of Drafts; 0 without speculative decoding
	graphSizes       []int64
	passes           [3]*pass
	times            [3]float64
	step, request    float64 // seconds of the host's work per step and per request, however many passes
}

func newStepTimer(row *Row, beta StepValues, kept int) *stepTimer {
	t := &stepTimer{
		times:      [3]float64{1},
		graphSizes: row.GraphSizes,
		step:       beta.Step * (1 + hiddenStep*row.Costs.WaitsForHost),
		request:    beta.Request * (1 + hiddenRequest*row.Costs.WaitsForHost),
	}
	d := row.Drafts
	if d == nil {
		t.passes[0] = newPass(row.Costs, beta, kept)
		return t
	}
	t.tokens, t.branches = d.Tokens, d.Branches
	rows := float64(d.Tokens + 1)
	t.passes[0] = newPass(row.Costs.withQueries(rows, rows), beta, kept)
	if d.Passes > 0 {
		t.passes[1] = newPass(d.Costs.withQueries(rows, 1), beta, kept)
		t.passes[2] = newPass(d.Costs.withQueries(1, float64(d.Branches)), beta, kept)
		t.times[1], t.times[2] = 1, float64(d.Passes-1)
	}
	return t
}

// withQueries returns the costs where a decode's key meets several queries of its request, and a
// graph's request has several rows.
func (c Costs) withQueries(queries, rows float64) Costs {
	c.DecodePair *= queries
	c.WindowedDecodePair *= queries
	c.GraphRequests *= rows
	return c
}

// seconds returns the time of a step whose decodes count once each, however many tokens they verify:
// the host's own work, then the longer of launching and the GPU's work, each summed over all passes.
func (t *stepTimer) seconds(s *Sums) float64 {
	host := t.request * float64(s.PrefillRequests+s.DecodeRequests)
	if s.PrefillTokens+s.DecodeRequests > 0 {
		host += t.step
	}
	rows := s.padded(t.graphSizes)
	if t.tokens == 0 {
		return host + larger(t.passes[0].launching(&rows), t.passes[0].gpu(&rows))
	}
	launching, gpu, sums := 0.0, 0.0, t.sums(&rows)
	for i, times := range t.times {
		if times > 0 {
			launching += times * t.passes[i].launching(&sums[i])
			gpu += times * t.passes[i].gpu(&sums[i])
		}
	}
	return host + larger(launching, gpu)
}

// sums returns the sums of each pass.
func (t *stepTimer) sums(s *Sums) [3]Sums {
	all := *s
	if all.window == 0 { // a draft may have a window where the model has none
		all.WindowedDecodeContext = all.DecodeContext
		all.WindowedPrefillCached = all.PrefillCached
		all.WindowedPrefillPairs = all.PrefillPairs
	}
	further := Sums{
		DecodeRequests: t.branches * (all.PrefillRequests + all.DecodeRequests),
		DecodeContext:  t.branches * (all.DecodeContext + all.PrefillCached + all.PrefillTokens),
		WindowedDecodeContext: t.branches *
			(all.WindowedDecodeContext + all.WindowedPrefillCached + all.PrefillTokens),
		padding: t.branches * all.padding,
	}
	all.padding *= 1 + t.tokens
	drafted := all.DecodeRequests * t.tokens
	all.DecodeContext += drafted
	all.WindowedDecodeContext += drafted
	verified, first := all, all
	verified.DecodeRequests += drafted
	first.PrefillTokens += drafted
	return [3]Sums{verified, first, further}
}
