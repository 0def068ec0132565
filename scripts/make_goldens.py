"""Rewrite the golden vectors of the Go package and the results on its pages: ``make goldens``.

Golden vectors are test cases with expected results. They depend on the checkpoint in the
repository. Run this script after changes to the checkpoint, the features, or the costs at peak
hardware rates.
"""

import sys
from pathlib import Path

import torch
import typer

ROOT = Path(__file__).resolve().parents[1]
# The tests define the cases of the golden vectors.
sys.path.append(str(ROOT / "tests" / "export"))


def main(
    checkpoint: Path = ROOT / "checkpoints" / "pinn.safetensors",
    out: Path = ROOT / "export" / "go",
) -> None:
    from goldens import write_blis_table, write_goldens
    from printed import write_printed

    torch.set_num_threads(1)
    write_goldens(checkpoint, out / "pinn" / "testdata")
    write_blis_table(checkpoint, out / "blis" / "testdata")
    for path in sorted(out.glob("*/testdata/*")):
        if path.is_file():
            print(f"{path.stat().st_size:10,} bytes  {path.relative_to(out)}")
    for path in write_printed():
        print(f"{path.name}: what its commands print is new")


if __name__ == "__main__":
    typer.run(main)
