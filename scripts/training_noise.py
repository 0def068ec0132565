"""Write ``checkpoints/training_noise.csv``: standard deviations of scores over training seeds.

The arguments are the first digits of the checkpoints' SHA-256 in ``checkpoints/ledger.csv``, a
table of scores by checkpoint; the first row of each checkpoint is used. The training runs differ
only in their random seed: ``seed=2`` with ``kernels.settings.seed=0`` keeps the synthetic models
unchanged. For a group that was added later, give the training runs that scored the group; their
later rows are then used::

    python scripts/training_noise.py e15fcd 551d3a 90fdba 9c5fb9
    python scripts/training_noise.py --later 03f022 8749cb
"""

import pandas as pd
import typer

from pinn.common.files import find_checkpoint
from pinn.common.tables import write_frame
from pinn.evaluation.panel import NOISE_FILE, read_ledger, read_panel, training_noise


def main(checkpoints: list[str], later: bool = False) -> None:
    """Write the standard deviation of each group's score over the training runs.

    Options:
        later: Keep existing groups, and add missing groups.
    """
    beside = find_checkpoint().parent
    lines = read_ledger(beside / "ledger.csv").drop_duplicates("checkpoint")
    hits = {start: lines["checkpoint"].str.startswith(start) for start in checkpoints}
    asked = lines[pd.DataFrame(hits).any(axis=1)]
    if len(asked) < max(2, len(checkpoints)) or any(hit.sum() != 1 for hit in hits.values()):
        found = ", ".join(f"{hit.sum()} of {start}" for start, hit in hits.items())
        raise typer.BadParameter(
            f"give exactly one checkpoint of each start, and at least two checkpoints, got {found}"
        )
    table = training_noise(asked).rename("score").rename_axis("group").reset_index()
    if later:
        table = pd.concat([read_panel(beside / NOISE_FILE), table]).drop_duplicates("group")
    write_frame(table, beside / NOISE_FILE, float_format="%.4g")
    print(table.to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
