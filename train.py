"""Train the surrogate: ``python train.py [+experiment=moe_ep] [key=value ...]``.

Reads measurements, scores every prediction method on held-out models or GPUs, fits the surrogate to
all measurements, and saves a checkpoint and a results folder. The last line of output is one JSON
document.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_method
from omegaconf import DictConfig

from pinn.common.progress import shown
from pinn.common.workers import stopping_at_once
from pinn.errors import PinnError
from pinn.evaluation.config import one_line_errors, register, typed


@contextmanager
def exiting_in_one_line() -> Iterator[None]:
    """End the process with status 1 and a one-line message if the input is wrong."""
    try:
        with one_line_errors():
            yield
    except PinnError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
@exiting_in_one_line()
def main(composed: DictConfig) -> None:
    """Run the experiment that the Hydra configuration describes."""
    composed.output_dir = os.path.relpath(HydraConfig.get().runtime.output_dir)
    config = typed(composed)
    config.check()
    with (
        stopping_at_once("what is finished is kept, and the same command goes on"),
        shown("train", sys.stderr),
    ):
        print(json.dumps(get_method(config.entry)(config)))


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise errors here, instead of printing by Hydra
    register()
    with exiting_in_one_line():
        main()
