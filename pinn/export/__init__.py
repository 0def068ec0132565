"""Exporters: ONNX graphs, coefficient tables, and files for Go programs, BLIS and llm-d."""
