"""Reader of InferenceX (InferenceMAX) ``agg_<name>.json``: one object per run, or a list of them.

Latencies are in seconds, and their keys have no unit suffix. InferenceX's CI samples lengths
uniformly from [0.8, 1] x the nominal lengths and drops the token totals. It sends ten prompts per
unit of concurrency to servers without prefix caching.
"""

from pinn.measurements.benchmarks import documents, marks
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.measurements.benchmarks.documents import NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.specs.flags import FlagValue
from pinn.specs.serving import SGLANG, TRTLLM

#: Range of the uniformly distributed lengths in InferenceX's CI, relative to the nominal length.
LENGTH_RANGE = (0.8, 1.0)
#: Number of prompts per unit of concurrency in one run of InferenceX's CI.
PROMPTS_PER_CONCURRENCY = 10
LABEL_SCHEMES = {"fp4": "nvfp4", "fp8": "fp8", "int4": "int4", "bf16": "bf16"}

_ASSUMED = (
    f"{PROMPTS_PER_CONCURRENCY} prompts per unit of concurrency, lengths uniform "
    f"between {LENGTH_RANGE[0]:g} and {LENGTH_RANGE[1]:g} x isl and osl, prefix "
    "cache off, as in InferenceX's CI runs"
)


#: Keys that identify InferenceX's files.
is_inferencex = marks.keys("hw", "conc", "isl", "osl")


def read_inferencex(values: Tree, reading: Reading) -> BenchmarkRun:
    """Read one run from a file of InferenceX.

    Raises:
        NotUsable: If prefill and decode were disaggregated, or attention was data-parallel over
            some of the GPUs.
    """
    if values.is_true("disagg"):
        raise NotUsable("the server ran disaggregated prefill/decode, expected a single server")
    concurrency = values.count("conc")
    figures = documents.client_statistics(values, "e2el", 1.0)
    tokens = (values.count("tp") or 1) * (values.number("output_tput_per_gpu") or 0.0)
    figures |= documents.throughputs(None, tokens)
    requests = reading.given.num_prompts or PROMPTS_PER_CONCURRENCY * concurrency
    lengths = _lengths(values.count("isl")), _lengths(values.count("osl"))
    load = Load(requests, *lengths, reading.concurrency(concurrency))
    server = _server(values)
    reading.assumed.append(_ASSUMED)
    return reading.run(load, figures, requests, server=server)


def _server(values: Tree) -> StatedServer:
    image = values.text("image").rpartition(":")[2]
    spelled = f"{values.text('framework')} {image}".strip()
    engine = StatedServer(engine=spelled).all_flags.get("engine")
    flags: dict[str, FlagValue] = {
        "tensor_parallel_size": values.count("tp") or 1,
        "enable_prefix_caching": False,
    }
    if values.is_true("dp_attention"):
        if engine != TRTLLM:
            raise NotUsable(
                "attention was data-parallel, but the file does not state over how many GPUs"
            )
        flags["enable_dp_attention"] = True
    if (experts := values.count("ep")) > 1:
        others = engine in (SGLANG, TRTLLM)
        flags |= {"ep_size": experts} if others else {"enable_expert_parallel": True}
    label = values.text("precision").lower()
    if label in LABEL_SCHEMES:
        flags["precision"] = LABEL_SCHEMES[label]
    drafted = (values.text("spec_decoding") or "none").lower() not in ("none", "false")
    gpu = values.text("hw").split("-")[0]
    return StatedServer(values.text("model"), gpu, flags, engine=spelled, speculative=drafted)


def _lengths(nominal: int) -> Lengths:
    low, high = (share * nominal for share in LENGTH_RANGE)
    return Lengths((low + high) / 2, low, high)
