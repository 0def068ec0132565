package pinn

// releases are those of an engine from one on and before another, for which a table's line holds.
type releases struct{ engine, since, until string }

// engineDefault is a line of the table of the engines' defaults; limits of 0 are none.
type engineDefault struct {
	releases
	flag, gpu        string
	leastGiB, below  float64
	leastTP, belowTP float64
	modelTypes       string // apart by spaces; empty for any
	value            string
}

// releaseKernel is a line of the table of what releases multiply experts by.
type releaseKernel struct {
	releases
	format                   string
	leastCapability, belowCC float64
	spread, timedAs          string
}

// samplerKernels that a setting asks for: their bytes per logit, how far they are from the
// bandwidth, and what they take whatever the batch.
type samplerKernels struct {
	logitBytes, slowdown, launchS, logitS float64
}

// words are the keys of an engine's speculative_config: of the method, the draft and the number of
// tokens, which is another for a model's own layer; its methods, and all keys that it may have.
type words struct {
	method, draft, tokens, mtpTokens string
	methods                          map[string]string
	keys                             []string
}

// requestFeature is an entry of the registry that alpha belongs to: 1, or the prompt's tokens.
type requestFeature struct {
	Feature
	phase     string
	perPrompt bool
}
