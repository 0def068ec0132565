"""Export of ONNX graphs, tables, and files for Go and BLIS."""
