package pinn

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// tensor is an array of a safetensors file, in float64 and row-major order.
type tensor struct {
	shape  []int
	values []float64
}

// readSafetensors reads the tensors and the metadata of a safetensors file
// (https://github.com/huggingface/safetensors): an 8-byte length, a JSON header, then the data.
func readSafetensors(r io.Reader) (map[string]tensor, map[string]string, error) {
	raw, err := io.ReadAll(r)
	if err != nil || len(raw) < 8 {
		return nil, nil, errors.Join(errors.New("no safetensors file"), err)
	}
	length, data := binary.LittleEndian.Uint64(raw), raw[8:]
	if length > uint64(len(data)) {
		return nil, nil, fmt.Errorf("the file is cut off in its header, which would have %d bytes", length)
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(data[:length], &header); err != nil {
		return nil, nil, fmt.Errorf("malformed safetensors header: %w", err)
	}
	data = data[length:]
	metadata := map[string]string{}
	if entry, found := header["__metadata__"]; found {
		if err := json.Unmarshal(entry, &metadata); err != nil {
			return nil, nil, fmt.Errorf("malformed metadata: %w", err)
		}
		delete(header, "__metadata__")
	}
	tensors := map[string]tensor{}
	for name, entry := range header {
		if tensors[name], err = readTensor(entry, data); err != nil {
			return nil, nil, fmt.Errorf("tensor %s: %w", name, err)
		}
	}
	return tensors, metadata, nil
}

func readTensor(entry json.RawMessage, data []byte) (tensor, error) {
	var about struct {
		Dtype   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(entry, &about); err != nil {
		return tensor{}, err
	}
	size := map[string]int{"F64": 8, "F32": 4}[about.Dtype]
	if size == 0 {
		return tensor{}, fmt.Errorf("type %q is not F64 or F32", about.Dtype)
	}
	from, to := about.Offsets[0], about.Offsets[1]
	if from < 0 || to < from || to > len(data) {
		return tensor{}, errors.New("it lies beyond the end of the file, which may be cut off")
	}
	count := 1
	for _, n := range about.Shape {
		if n < 0 || n > 0 && count > len(data)/n {
			return tensor{}, fmt.Errorf("impossible shape %v", about.Shape)
		}
		count *= n
	}
	if count*size != to-from {
		return tensor{}, fmt.Errorf("%d bytes for shape %v of %s", to-from, about.Shape, about.Dtype)
	}
	values := make([]float64, count)
	for i := range values {
		at := data[from+i*size:]
		if size == 8 {
			values[i] = math.Float64frombits(binary.LittleEndian.Uint64(at))
		} else {
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		}
	}
	return tensor{about.Shape, values}, nil
}
