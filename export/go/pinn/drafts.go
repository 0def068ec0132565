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
			return fmt.Errorf("draft_acceptance must be rates with commas between them, got %q: export "+
				"the table again", r.Config["draft_acceptance"])
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
			return fmt.Errorf("%s must be %d to %d, got %d: export the table again", draftCounts[i],
				least, mostDrafted, *count)
		}
	}
	if int64(len(d.Acceptance)) > d.Tokens || len(d.Acceptance) == 0 ||
		!(slices.Min(d.Acceptance) >= 0 && slices.Max(d.Acceptance) <= 1) {
		return fmt.Errorf("draft_acceptance must have 1 to %d rates from 0 to 1, as draft.tokens says, "+
			"got %v: export the table again", d.Tokens, d.Acceptance)
	}
	if d.Passes > 0 && d.Costs.Layers == 0 {
		return fmt.Errorf("draft_cost.layers is missing, and draft.passes is %d: export the table again",
			d.Passes)
	}
	return nil
}

// drafting times a step that drafts and verifies: a pass of the model, a first one of the draft over
// the same tokens, and further ones.
type drafting struct {
	tokens, branches int64
	passes           [3]*pass
	times            [3]float64
	step, request    float64 // beta of what a step has once, however many passes
}

func newDrafting(row *Row, beta StepValues, keptTokens int) *drafting {
	d, rows := row.Drafts, float64(row.Drafts.Tokens+1)
	made := &drafting{
		tokens: d.Tokens, branches: d.Branches, times: [3]float64{1},
		step: beta.Step, request: beta.Request,
	}
	beta.Step, beta.Request = 0, 0
	made.passes[0] = newPass(row.Costs.withQueries(rows, rows), beta, keptTokens)
	if d.Passes > 0 {
		made.passes[1] = newPass(d.Costs.withQueries(rows, 1), beta, keptTokens)
		made.passes[2] = newPass(d.Costs.withQueries(1, float64(d.Branches)), beta, keptTokens)
		made.times[1], made.times[2] = 1, float64(d.Passes-1)
	}
	return made
}

// withQueries returns the costs where a decode's key meets several queries of its request, and a
// graph's request has several rows.
func (c Costs) withQueries(queries, rows float64) Costs {
	c.DecodePair *= queries
	c.WindowedDecodePair *= queries
	c.GraphRequests *= rows
	return c
}

// seconds returns the time of a step whose decodes count once each, however many tokens they verify.
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

// sums returns the sums of each pass.
func (d *drafting) sums(s *Sums) [3]Sums {
	all := *s
	if all.window == 0 { // a draft may have a window where the model has none
		all.WindowedDecodeContext = all.DecodeContext
		all.WindowedPrefillCached = all.PrefillCached
		all.WindowedPrefillPairs = all.PrefillPairs
	}
	further := Sums{
		DecodeRequests: d.branches * (all.PrefillRequests + all.DecodeRequests),
		DecodeContext:  d.branches * (all.DecodeContext + all.PrefillCached + all.PrefillTokens),
		WindowedDecodeContext: d.branches *
			(all.WindowedDecodeContext + all.WindowedPrefillCached + all.PrefillTokens),
	}
	drafted := all.DecodeRequests * d.tokens
	all.DecodeContext += drafted
	all.WindowedDecodeContext += drafted
	verified, first := all, all
	verified.DecodeRequests += drafted
	first.PrefillTokens += drafted
	return [3]Sums{verified, first, further}
}
