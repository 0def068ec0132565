"""Scaling of the inputs of fp8 products: compared with tables, and in composed steps."""

import numpy as np
import pandas as pd
import pytest

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.composition import (
    COMPOSED_PARTS,
    compose,
    quantization_seconds,
    without_quantization,
)
from pinn.kernels.tables.table import systems_folder
from pinn.physics.batch_sums import UniformBatches
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import ServingSpec

LLAMA = "meta-llama/Llama-3.1-70B"
TOKENS = np.array([1.0, 64, 512, 2048, 8192])


def timed(system: str) -> pd.DataFrame:
    """Return rows ``m``, width ``k`` and the seconds of finding and applying scales together."""
    try:
        folder = systems_folder() / "data" / system / "quantize" / "vllm"
    except PinnError as error:
        pytest.skip(str(error))
    scales, applying = (
        next(folder.glob(f"*/{name}_perf.parquet"), None)
        for name in ("computescale", "scale_matrix")
    )
    if scales is None or applying is None:
        pytest.skip(f"aiconfigurator-core has no tables of fp8's scales for {system}")
    both = pd.read_parquet(scales).merge(pd.read_parquet(applying), on=["m", "k", "quant_dtype"])
    return both.assign(seconds=(both["latency_x"] + both["latency_y"]) / 1e3)


@pytest.mark.parametrize(
    ("gpu", "median", "most"),
    [
        ("h100_sxm", 0.14, 1.8),
        ("h200_sxm", 0.11, 1.9),
        ("b200_sxm", 0.35, 2.2),
        ("l40s", 0.55, 5.5),  # its cache holds 96 MB of the data that an H100 reads from memory
    ],
)
def test_seconds_are_those_of_the_tables(gpu, median, most):
    """Half of the rows are within ``median``, nine in ten within a factor of ``most``."""
    rows = timed(gpu)
    found = quantization_seconds(
        load_gpu(gpu), rows["m"].to_numpy(float), rows["k"].to_numpy(float)
    )
    logs = np.abs(np.log(found / rows["seconds"]))
    assert len(rows) > 1000
    assert np.expm1(logs.median()) < median
    assert np.exp(logs.quantile(0.9)) < most


def test_a_product_keeps_half_of_its_time():
    seconds, scaling = np.array([4e-6, 20e-6]), np.array([3e-6, 3e-6])
    np.testing.assert_allclose(without_quantization(seconds, scaling), [2e-6, 17e-6])


def products(kernels, gpu: str, form: str) -> np.ndarray:
    """Return the seconds of a layer's products by ``TOKENS``, in steps with one prompt alone."""
    model = with_precision(load_model(LLAMA), form)
    deployment = Deployment(model, load_gpu(gpu), ServingSpec(tensor_parallel_size=4))
    none, one = np.zeros(len(TOKENS)), np.ones(len(TOKENS))
    parts = compose(kernels, deployment, UniformBatches(none, none, one, TOKENS, none))
    return parts[:, list(COMPOSED_PARTS).index("gemm")] / model.layers


def test_static_scales_save_the_kernels_that_find_them(kernels):
    static, dynamic = (products(kernels, "H100", form) for form in ("fp8_static", "fp8"))
    assert (static < dynamic).all()
    assert (static >= dynamic / 2).all()
    assert dynamic[-1] - static[-1] >= 5e-6  # 8,192 tokens


def test_static_scales_save_nothing_without_fp8_units(kernels):
    static, dynamic = (products(kernels, "A100", form) for form in ("fp8_static", "fp8"))
    np.testing.assert_array_equal(static, dynamic)
