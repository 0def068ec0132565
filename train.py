"""Train the surrogate: ``python train.py [+experiment=moe_ep] [key=value ...]``.

Reads measurements, scores every method on held-out models or GPUs, fits on everything, and saves
a checkpoint and a results folder. The last line of output is one JSON document.
"""

import json
import sys

import hydra
from hydra.utils import get_method
from omegaconf import DictConfig

from pinn.common.progress import shown
from pinn.common.workers import stopping_at_once
from pinn.errors import PinnError


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(config: DictConfig) -> None:
    """Run the experiment that the configuration describes."""
    with (
        stopping_at_once("what is finished is kept, and the same command goes on"),
        shown("train", sys.stderr),
    ):
        try:
            print(json.dumps(get_method(config.entry)(config)))
        except PinnError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
