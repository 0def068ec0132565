"""Write the golden vectors of the Go package and the results on its pages anew: ``make goldens``.

They come from the checkpoint in the repository, so this has to run after every change of it, of a
feature registry, of the embedding or of the datasheet costs.
"""

import sys
from pathlib import Path

import torch
import typer

ROOT = Path(__file__).resolve().parents[1]
# The cases are those of the tests.
sys.path.append(str(ROOT / "tests" / "export"))


def main(
    checkpoint: Path = ROOT / "checkpoints" / "pinn.safetensors",
    out: Path = ROOT / "export/go/pinn/testdata",
) -> None:
    from goldens import write_goldens
    from printed import write_printed

    torch.set_num_threads(1)
    write_goldens(checkpoint, out)
    for path in sorted(out.iterdir()):
        if path.is_file():
            print(f"{path.stat().st_size:10,} bytes  {path.name}")
    for path in write_printed():
        print(f"{path.name}: what its commands print is new")


if __name__ == "__main__":
    typer.run(main)
