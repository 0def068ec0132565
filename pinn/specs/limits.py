"""The largest sizes that input may ask for; each is checked before anything of it is built.

Beyond them is no deployment or load that anybody serves; they keep a typing error or a hostile
file from taking the memory or the evening. docs/limits.md lists them.
"""

from __future__ import annotations

import math
from typing import Any

from pinn.errors import TooLargeError

#: Of a JSON document, a YAML document, and a table of configurations or requests.
MOST_JSON_BYTES = 32 * 2**20
MOST_YAML_BYTES = 8 * 2**20
MOST_CSV_BYTES = 128 * 2**20
#: A line of a trace or a log, which is otherwise as long as it likes; a hole in it is such a line.
MOST_LINE_BYTES = 64 * 2**20
#: Seconds that a pipe may say nothing before it is taken for one that nobody writes to.
MOST_SILENT_SECONDS = 10.0
#: Lists and mappings inside each other; libyaml's own recursion ends the process at some 10,000.
MOST_DEPTH = 100
#: Values of a YAML document, each alias counted as what it stands for.
MOST_YAML_VALUES = 200_000
#: Transformer layers, for each of which the parser makes an entry.
MOST_LAYERS = 1000
#: Layers times regular expressions of a quantization config, each held against each: about 5 s.
MOST_MATCHES = 100_000
#: Any other size in a config.json: widths, heads, experts, vocabulary, context.
MOST_MODEL_SIZE = 10**9
#: Any number of a datasheet in SI units.
MOST_DATASHEET = 1e21
#: Any number that an engine flag takes.
MOST_FLAG = 10**15
#: Data-parallel replicas, each of which a simulation keeps the state of.
MOST_REPLICAS = 4096
#: Parts of a batch as written, its requests, and tokens of one of them.
MOST_BATCH_PARTS = 1000
MOST_BATCH_REQUESTS = 10**6
MOST_BATCH_TOKENS = 10**9
#: Configurations of one list or grid: about 5 s and 300 MB.
MOST_CONFIGURATIONS = 100_000
#: Requests of a workload, prompt or output tokens of one, and output tokens of all.
MOST_REQUESTS = 10**6
MOST_REQUEST_TOKENS = 10**8
MOST_OUTPUT_TOKENS = 10**9
#: Seconds on the clock of a workload: ten years, which nanoseconds still divide.
MOST_SECONDS = 3.2e8
#: State of a simulated engine in memory, and KV cache blocks that it counts.
MOST_ENGINE_BYTES = 2**30
MOST_BLOCKS = 2**40
#: Steps of a simulation, whose records take 0.5 GB: eight hours of steps of 10 ms.
MOST_STEPS = 3_000_000
#: Columns of a table of configurations, requests or runs.
MOST_COLUMNS = 1000
#: Of a checkpoint, or of fitted kernels; the released ones have 0.5 MiB.
MOST_CHECKPOINT_BYTES = 256 * 2**20
#: Units of a hidden layer of a checkpoint's network; it has no more layers than ``MOST_DEPTH``.
MOST_HIDDEN = 4096
#: Seed of random draws.
MOST_SEED = 2**63


def check_size(value: float, most: float, what: str, remedy: str) -> None:
    """Refuse what is larger than a limit of this module.

    Args:
        value: What was got.
        most: The limit.
        what: What is counted, with its place: ``load.yaml: requests``.
        remedy: What to do instead.

    Raises:
        TooLargeError: If the value exceeds the limit.

    >>> check_size(10**400, MOST_LAYERS, "layers", "check the file")
    Traceback (most recent call last):
    pinn.errors.TooLargeError: layers: got 10^400, at most 1,000 are read: check the file
    """
    if not value <= most:
        raise TooLargeError(f"{what}: got {written(value)}, at most {most:,} are read: {remedy}")


def written(value: Any) -> str:
    """A number as errors show it, however many digits it has; anything else as Python writes it.

    >>> written(12345), written(-(10**400))
    ('12,345', '-10^400')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 10**18:
            return f"{value:,}"
        return f"{'-' if value < 0 else ''}10^{round(math.log10(abs(value)))}"
    return f"{value:g}" if isinstance(value, float) else f"{value!r:.60}"


def is_finite(value: Any) -> bool:
    """Whether a value of JSON or YAML is a number that float64 holds; truth values are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300
