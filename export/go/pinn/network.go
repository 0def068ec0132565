package pinn

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
)

// CheckpointVersion is the version of the checkpoints that this package reads.
const CheckpointVersion = 2

// Network is a trained network: embedding -> alpha and beta. It is safe for concurrent use.
type Network struct {
	settings struct {
		Hidden    int     `json:"hidden"`
		Depth     int     `json:"depth"`
		BetaBound float64 `json:"beta_bound"`
		Corrected bool    `json:"corrected"`
	}
	tensors map[string]tensor
}

// LoadNetwork reads a checkpoint file of Python's pinn (checkpoints/pinn.safetensors).
func LoadNetwork(path string) (*Network, error) { return load(path, ReadNetwork) }

// load reads a file, which errors name.
func load[T any](path string, read func(io.Reader) (*T, error)) (*T, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return found, nil
}

// ReadNetwork reads a checkpoint.
//
// It fails where the file is cut off, is of another version, or was made for other features or
// descriptors than this package implements.
func ReadNetwork(r io.Reader) (*Network, error) {
	tensors, metadata, err := readSafetensors(r)
	if err != nil {
		return nil, err
	}
	text, found := metadata["pinn"]
	if !found {
		return nil, fmt.Errorf("the file is no checkpoint of pinn")
	}
	n := &Network{tensors: tensors}
	var header struct {
		Version  int                 `json:"format_version"`
		Settings any                 `json:"settings"`
		Registry map[string][]string `json:"registry"`
	}
	header.Settings = &n.settings
	if err := json.Unmarshal([]byte(text), &header); err != nil {
		return nil, fmt.Errorf("malformed header: %w", err)
	}
	if err := checkVersion("", "", header.Version, CheckpointVersion); err != nil {
		return nil, err
	}
	if err := checkRegistry(header.Registry); err != nil {
		return nil, err
	}
	return n, n.checkTensors()
}

// knownRegistry is everything whose order a checkpoint depends on.
func knownRegistry() map[string][]string {
	return map[string][]string{
		"descriptors": descriptorNames, "rates": rateNames,
		"step_features":    columnNames(StepFeatures()),
		"request_features": columnNames(RequestFeatures()),
	}
}

func checkRegistry(found map[string][]string) error {
	for part, names := range knownRegistry() {
		if !reflect.DeepEqual(found[part], names) {
			return fmt.Errorf("the checkpoint was made for other %s than this package implements: "+
				"use the Go package of the program that made it",
				strings.ReplaceAll(part, "_", " "))
		}
	}
	return nil
}

func columnNames(features []Feature) []string {
	names := make([]string, len(features))
	for i, f := range features {
		names[i] = columnName(f)
	}
	return names
}

// checkTensors makes sure that the forward pass finds every number it needs.
func (n *Network) checkTensors() error {
	if n.settings.Hidden < 1 || n.settings.Depth < 1 || n.settings.Depth > 64 {
		return fmt.Errorf("impossible settings: hidden %d, depth %d",
			n.settings.Hidden, n.settings.Depth)
	}
	for name, shape := range n.shapes() {
		if got := n.tensors[name].shape; !reflect.DeepEqual(got, shape) {
			return fmt.Errorf("tensor %s has shape %v, expected %v", name, got, shape)
		}
	}
	return nil
}

// shapes of every tensor that the forward pass reads.
func (n *Network) shapes() map[string][]int {
	d, r, b, a := len(descriptorNames), len(rateNames), numStepFeatures, len(requestFeatures)
	h := n.settings.Hidden
	shapes := map[string][]int{
		"mean": {d}, "scale": {d}, "low": {d}, "high": {d}, "rate_low": {r}, "rate_high": {r},
		"beta_floor": {b}, "beta_excess": {b}, "alpha_prior": {a}, "beta_base": {b}, "alpha_base": {a},
		"elasticity_lower": {b, r}, "elasticity_upper": {b, r},
		"beta_head.weight": {b, h}, "beta_head.bias": {b},
		"elasticity_head.weight": {b * r, h}, "elasticity_head.bias": {b * r},
	}
	before := d
	for i := range n.settings.Depth {
		shapes[fmt.Sprintf("trunk.%d.weight", 2*i)] = []int{h, before}
		shapes[fmt.Sprintf("trunk.%d.bias", 2*i)] = []int{h}
		before = h
	}
	return shapes
}

// Coefficients gives beta and alpha of an embedded deployment, in the order of the registries.
//
// It fails where a descriptor or rate is missing or unknown, or a coefficient comes out negative,
// infinite or NaN.
func (n *Network) Coefficients(e Embedding) (beta, alpha []float64, err error) {
	free, err := inOrder("descriptor", descriptorNames, e.Descriptors)
	if err != nil {
		return nil, nil, err
	}
	rates, err := inOrder("rate", rateNames, e.Rates)
	if err != nil {
		return nil, nil, err
	}
	beta, alpha = n.forward(free, rates)
	return beta, alpha, checkCoefficients("network", beta, alpha)
}

func inOrder(what string, names []string, values map[string]float64) ([]float64, error) {
	found := make([]float64, len(names))
	for i, name := range names {
		v, given := values[name]
		if !given || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%s %s is missing or not finite", what, name)
		}
		found[i] = v
	}
	if len(values) != len(names) {
		return nil, fmt.Errorf("%d %ss given, the network reads %d: %s",
			len(values), what, len(names), strings.Join(names, ", "))
	}
	return found, nil
}

// forward is Python's CoefficientNetwork.forward.
func (n *Network) forward(free, rates []float64) (beta, alpha []float64) {
	beta = append([]float64(nil), n.at("beta_base")...)
	alpha = append([]float64(nil), n.at("alpha_base")...)
	if n.settings.Corrected {
		n.correct(free, rates, beta)
	}
	floor, excess, prior := n.at("beta_floor"), n.at("beta_excess"), n.at("alpha_prior")
	for i := range beta {
		beta[i] = floor[i] + excess[i]*math.Exp(beta[i])
	}
	for i := range alpha {
		alpha[i] = prior[i] * math.Exp(alpha[i])
	}
	return beta, alpha
}

func (n *Network) at(name string) []float64 { return n.tensors[name].values }

// correct adds the configuration's corrections to the logarithms of the coefficients.
func (n *Network) correct(free, rates, beta []float64) {
	hidden := n.trunk(free)
	low, high := n.at("rate_low"), n.at("rate_high")
	lower, upper := n.at("elasticity_lower"), n.at("elasticity_upper")
	raw := n.linear("elasticity_head", hidden)
	head := n.linear("beta_head", hidden)
	for i := range beta {
		bend := 0.0
		for j, rate := range rates {
			k := i*len(rates) + j
			span := upper[k] - lower[k]
			elasticity := lower[k] + span*sigmoid(raw[k]+logit(-lower[k]/span))
			bend += elasticity * clamp(rate, low[j], high[j])
		}
		beta[i] += n.settings.BetaBound*math.Tanh(head[i]) + bend
	}
}

// trunk is the last hidden layer, of descriptors clamped to the training range.
func (n *Network) trunk(free []float64) []float64 {
	mean, scale, low, high := n.at("mean"), n.at("scale"), n.at("low"), n.at("high")
	hidden := make([]float64, len(free))
	for i, v := range free {
		hidden[i] = clamp((v-mean[i])/scale[i], low[i], high[i])
	}
	for i := range n.settings.Depth {
		hidden = n.linear(fmt.Sprintf("trunk.%d", 2*i), hidden)
		for j, v := range hidden {
			hidden[j] = v * sigmoid(v)
		}
	}
	return hidden
}

// linear multiplies with a layer's weights [out, in] and adds its bias.
func (n *Network) linear(name string, x []float64) []float64 {
	weight, bias := n.at(name+".weight"), n.at(name+".bias")
	y := make([]float64, len(bias))
	for i := range y {
		total := bias[i]
		for j, w := range weight[i*len(x) : (i+1)*len(x)] {
			total += w * x[j]
		}
		y[i] = total
	}
	return y
}

func sigmoid(v float64) float64 { return 1 / (1 + math.Exp(-v)) }

func clamp(v, low, high float64) float64 { return min(max(v, low), high) }

// logit is the inverse sigmoid, kept where the sigmoid still has a slope.
func logit(share float64) float64 {
	share = clamp(share, 0.1, 0.9)
	return math.Log(share) - math.Log1p(-share)
}

// Row gives a deployment's coefficients and costs, of which [NewModel] makes a latency model.
func (n *Network) Row(d *Deployment) (*Row, error) {
	beta, alpha, err := n.Coefficients(d.Embed())
	if err != nil {
		return nil, err
	}
	config := map[string]string{"model": d.model.Name, "gpu": d.gpu.Name}
	for name, set := range map[string]int64{
		"max_num_batched_tokens": d.serving.MaxNumBatchedTokens, "block_size": d.serving.BlockSize,
	} {
		if set > 0 {
			config[name] = fmt.Sprint(set)
		}
	}
	if asked := d.serving.SpeculativeConfig; asked != "" {
		config["speculative_config"] = asked
	}
	row := &Row{
		Config: config,
		Beta:   beta, Alpha: alpha, Costs: d.Costs(), Drafts: d.drafts,
		WindowTokens:   d.model.WindowTokens,
		GPUCacheTokens: d.gpuCacheTokens(),
		PrefixCaching:  !d.serving.NoPrefixCaching,
	}
	return row, row.check("deployment")
}
