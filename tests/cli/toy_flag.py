"""The command line with one flag more: runs each list of arguments that a JSON list on stdin holds.

Prints the exit codes and outputs as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from pinn.specs import serving
from pinn.specs.flags import flag


@dataclass(frozen=True)
class ToyServingSpec(serving.ServingSpec):
    """Equal but for the flag."""

    toy_count: int = flag(3, "How many there are.", unit="toys", least=2, shorts=("-tc",))


def main() -> None:
    # The flag is declared nowhere else: all the rest is imported after it, as if it had been there.
    serving.ServingSpec = ToyServingSpec  # type: ignore[misc]
    from typer.testing import CliRunner

    from pinn.cli.main import app

    runs = [CliRunner().invoke(app, arguments) for arguments in json.load(sys.stdin)]
    print(json.dumps([[run.exit_code, f"{run.output}{run.exception}"] for run in runs]))


if __name__ == "__main__":
    main()
