"""ONNX graphs of a checkpoint, ready to run on one thread."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from pinn.export.onnx_graphs import export_onnx
from pinn.surrogate.checkpoint import Checkpoint


def onnx_sessions(checkpoint: Checkpoint, folder: Path) -> list[onnxruntime.InferenceSession]:
    """Return the sessions of ``coefficients.onnx`` and ``step_time.onnx``."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return [
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for path in export_onnx(checkpoint, {"checkpoint_sha256": "0"}, folder)
    ]
