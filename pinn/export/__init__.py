"""ONNX, tables, Go and BLIS files."""
