"""Scores calibrations on measured servers: the figures of docs/your_server.md.

    python scripts/score_calibration.py steps
    python scripts/score_calibration.py deployments
    python scripts/score_calibration.py serving-runs

``steps`` needs PINN_STEPS_DIR, ``serving-runs`` PINN_SERVING_RUNS and PINN_MODEL_CONFIGS. The last
line is one JSON document.
"""

from __future__ import annotations

import argparse
import json

from pinn.evaluation.calibration_scores import deployments, serving_runs, steps

SCORES = {
    "steps": steps.score,
    "deployments": deployments.score,
    "serving-runs": serving_runs.score,
}


def main() -> None:
    """Print the table of one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=SCORES)
    part = parser.parse_args().part
    table, figures = SCORES[part]()
    print(table.round(2).to_string(index=False))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
