"""Write the golden vectors of the Go package and the results on its pages anew: ``make goldens``.

They come from the checkpoint in the repository, so this has to run after every change of it, of a
feature registry, of the embedding or of the datasheet costs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
# The cases are those of the tests.
sys.path.append(str(ROOT / "tests" / "export"))


def main() -> None:
    from goldens import write_goldens
    from printed import write_printed

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, default=ROOT / "checkpoints" / "pinn.safetensors"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "export/go/pinn/testdata")
    options = parser.parse_args()
    torch.set_num_threads(1)
    write_goldens(options.checkpoint, options.out)
    for path in sorted(options.out.iterdir()):
        if path.is_file():
            print(f"{path.stat().st_size:10,} bytes  {path.name}")
    for path in write_printed():
        print(f"{path.name}: what its commands print is new")


if __name__ == "__main__":
    main()
