"""Score each network that was trained without a model on the measured vLLM rows of that model.

python scripts/score_left_out.py

Simulates every row with the network in ``checkpoints/left_out`` that was trained without its model,
writes ``predictions.csv`` there and prints errors by model: median / mean absolute percentage error
(median bias) in %. No network is trained.
"""

from pinn.common.files import find_checkpoint
from pinn.common.screen import Grid
from pinn.common.tables import write_frame
from pinn.evaluation.engines import networks, score_engines
from pinn.evaluation.metrics import error_summary
from pinn.measurements.deployments.measured import measured_deployment
from pinn.training.data.silicon import read_silicon

if __name__ == "__main__":
    rows, of = read_silicon()[0], networks()
    missing = {measured_deployment(row).deployment.model.name for _, row in rows.iterrows()}
    if missing := missing - set(of.left_out):
        names = ", ".join(sorted(missing))
        raise SystemExit(f"error: no network was trained without {names}: train the release again")
    scores = score_engines(rows, of)
    names = {"network_tpot_s": "tpot_s", "network_ttft_s": "ttft_s"}
    now = scores[["row_id", *names]].rename(columns=names)
    write_frame(now, find_checkpoint().parent / "left_out/predictions.csv", float_format="%.8g")
    grid = Grid.of("model", "rows", "TPOT", "TTFT")
    for name, part in (*scores.groupby("model"), ("all", scores)):
        errors = (error_summary(part[f"network_{each}"], part[each]) for each in names.values())
        grid.add(str(name), str(len(part)), *map(str, errors))
    print(grid.markdown())
