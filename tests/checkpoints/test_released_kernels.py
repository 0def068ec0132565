"""The kernel surrogates in the repository were fitted to the rows that the readers keep today."""

from pathlib import Path

from fit_surrogates import exclusions

from pinn.kernels.heldout import kernel_tables
from pinn.kernels.surrogates import OPERATORS, KernelSurrogates

KERNELS = Path(__file__).parents[2] / "checkpoints" / "kernels"


def test_they_learned_from_as_many_rows_as_the_readers_keep():
    """Check row counts: trainings use these fits, so a change of the readers must fit them anew."""
    for exclusion in exclusions():
        kept = exclusion.apply(kernel_tables())
        rows = {operator.name: len(getattr(kept, operator.name)) for operator in OPERATORS}
        released = KernelSurrogates.load(KERNELS / exclusion.slug()).metadata
        found = {name: released[name] for name in ("excluded", "rows")}
        remedy = f"{exclusion.slug()}: run 'python scripts/fit_surrogates.py', then train anew"
        assert found == {"excluded": exclusion.describe(), "rows": rows}, remedy
