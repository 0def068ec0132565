"""Write data/engines/launch_facts.csv: engine flags of a public benchmark's launch scripts.

python scripts/import_launch_facts.py SOURCE

SOURCE is a CSV file (.csv or .csv.gz) generated from the Git history of SemiAnalysisAI/InferenceX.
It has one line per configuration, measured point (lengths, parallelism, concurrency) and period in
which the script had the same flags. Columns that affect a step, the schedule or the client's load
are kept, with their source. Rows that agree in these columns are merged into one with a list of
points. ``pinn.measurements.deployments.launch_facts`` reads the result.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import typer

from pinn.common.files import data_folder
from pinn.common.tables import write_frame
from pinn.measurements.deployments.launch_facts import FLAGS

_MODELS = {
    "Llama-3.3-70B": "meta-llama/Llama-3.3-70B-Instruct",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "MiniMax-M2.5": "MiniMaxAI/MiniMax-M2.5",
    "Kimi-K2.5": "moonshotai/Kimi-K2.5",
    "DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    "Qwen3.5-397B-A17B": "Qwen/Qwen3.5-397B-A17B",
}
#: Name prefixes of environment variables that affect neither step times nor the schedule.
_IDLE = ("NCCL_", "PYTHONUNBUFFERED", "PYTORCH_CUDA_ALLOC_CONF", "TRITON_ROOT", "TLLM_OVERRIDE")


def compact(source: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the source table with the columns ``COLUMNS``, identical rows merged."""
    lines = pd.concat([_renamed(source), *_branch_runs(_renamed(source))], ignore_index=True)
    lines = _joined_in_time(lines)
    about = [c for c in COLUMNS if c != "points"]
    points = lines.groupby(about, sort=False, dropna=False)["point"].agg(
        lambda each: "|".join(dict.fromkeys(each))
    )
    order = ["engine", "model", "gpu", "precision", "drafts", "since"]
    table = points.rename("points").reset_index()[list(COLUMNS)]
    return table.sort_values(order, kind="stable", ignore_index=True)


#: Columns of launch_facts.csv.
COLUMNS = (
    "engine", "model", "checkpoint", "gpu", "precision", "drafts", "image", "since", "until",
    "own_change", "borrowed", "points", *FLAGS, "script", "commit",
)  # fmt: skip

#: For each column of launch_facts.csv, the column of the source table from which it is read, and a
#: regular expression. The value is the group that the expression captures, or ``yes`` if it matches
#: and has no group.
_PATTERNS = {
    "own_change": ("change_of", "^this configuration$"),
    "enable_dp_attention": ("dp_attention_passed", "^true$"),
    "enable_expert_parallel": ("expert_parallel_passed", "^yes$"),
    "fuse_all_reduce": ("fused_allreduce", "^on$"),
    "async_scheduling": ("async_scheduling", "^on$"),
    "cudagraph_padding": ("graph_other", "enable_padding=True"),
    "fuse_attn_quant": ("compilation_config", r'"enable_attn_fusion": ?true'),
    "chat_template": ("other_flags", "use-chat-template"),
    "cudagraph_mode": ("graph_other", r"cudagraph_mode=(\w+)"),
    "piecewise_tokens": ("piecewise_graphs", r"1\.\.(\d+)"),
    "batch_wait_timeout_iters": ("batch_wait", r"batch_wait_timeout_iters=([\d.]+)"),
    "batch_wait_max_tokens_ratio": ("batch_wait", r"batch_wait_max_tokens_ratio=([\d.]+)"),
}
_SAME = {
    "engine": "framework", "checkpoint": "model_path", "precision": "precision",
    "since": "valid_from", "until": "valid_until", "max_cudagraph_capture_size": "graph_max",
    "commit": "commit_from",
}  # fmt: skip


def _renamed(source: pd.DataFrame) -> pd.DataFrame:
    found = source[[*_SAME.values()]].set_axis([*_SAME], axis=1)
    for name, (column, pattern) in _PATTERNS.items():
        found[name] = source[column].map(partial(_said, pattern))
    found = found.assign(
        model=source["model"].map(_MODELS),
        gpu=source["gpu"] + "_sxm",
        drafts=source["speculative"].map(_drafts),
        image=source["image"].str.replace("#", "/"),
        borrowed="",
        point=source.apply(_point, axis=1),
        tensor_parallel_size=source["tp_passed"].where(source["tp_passed"] != source["tp"], ""),
        data_parallel_size=source["dp_passed"].replace("1", ""),
        max_model_len=source.apply(_longest, axis=1),
        gpu_memory_utilization=source["memory_fraction"].map(_number),
        enable_prefix_caching=np.where(source["prefix_caching"] == "off", "no", ""),
        attention_dp_timeout_iters=source["attention_dp_config"].map(_balance),
        environment=source["env"].map(_environment),
        warmups_per_client=source["warmups"].map({"2*CONC": "2", "0": "0"}),
        prompts_per_client=source["num_prompts_per_conc"].map(_prompts),
        script=source["script_path"].str.replace("benchmarks/", ""),
    )
    return found.assign(**{name: source[name] for name in FLAGS if name not in found})


def _branch_runs(lines: pd.DataFrame) -> list[pd.DataFrame]:
    """Return rows for benchmark runs on other branches, which the default branch lacks.

    MiniMax's commit beb6a6b18 has the script of the merge bddbf4031. No branch has Kimi's script
    for B300, so the script for B200 of that day is used.
    """
    lines, merge = lines[lines["gpu"] == "b200_sxm"], "2026-04-03T16:31Z"
    of_minimax = lines["model"] == _MODELS["MiniMax-M2.5"]
    of_kimi, run = lines["model"] == _MODELS["Kimi-K2.5"], "2026-04-03T16:53Z"
    minimax = lines[of_minimax & (lines["precision"] == "fp8") & (lines["since"] == merge)]
    held = (lines["since"] <= run) & (run < lines["until"])
    return [
        minimax.assign(since="2026-04-03T02:34Z", until=merge, commit="beb6a6b18"),
        lines[of_kimi & (lines["precision"] == "fp4") & held].assign(
            gpu="b300_sxm", since=run, until="2026-04-03T16:54Z",
            image="vllm/vllm-openai:v0.17.0-cu130", borrowed="B200's script of that day",
        ),
    ]  # fmt: skip


def _joined_in_time(lines: pd.DataFrame) -> pd.DataFrame:
    """Merge consecutive periods with the same flags into one row; the first commit is kept."""
    same = [c for c in lines.columns if c not in ("since", "until", "commit", "own_change")]
    lines = lines.dropna(subset=same)
    of_one = lines.groupby(same, sort=False).ngroup().rename("of_one")
    lines = lines.assign(of_one=of_one).sort_values(["of_one", "since"], kind="stable")
    starts = lines["since"] != lines.groupby("of_one")["until"].shift()
    stretches = lines.groupby(starts.cumsum())
    return stretches.first().assign(until=stretches["until"].last())


def _point(line: pd.Series) -> str:
    """Return a measured point as the text ``isl/osl/tp/ep/dp:concurrencies``."""
    data = "dp" if line["dp_attn_label"] == "true" else ""
    spread = line["ep_label"] if line["ep_label"] != "1" else ""
    clients = " ".join(line["concurrency"].split())
    return f"{line['isl']}/{line['osl']}/{line['tp']}/{spread}/{data}:{clients}"


def _longest(line: pd.Series) -> str:
    """Return the margin of ``max_model_len`` over prompt and output, as text such as ``+200``.

    If it is none of the margins of the benchmark's workflows, return the length itself.
    """
    if not line["max_model_len"]:
        return ""
    margin = int(line["max_model_len"]) - int(line["isl"]) - int(line["osl"])
    return f"+{margin}" if margin in (0, 20, 200, 256) else line["max_model_len"]


def _said(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return "" if found is None else found[1] if found.re.groups else "yes"


def _number(text: str) -> str:
    return f"{float(text):g}" if text else ""


def _prompts(text: str) -> str:
    return " or ".join(dict.fromkeys(re.findall(r"\b\d0\b", text.split("(")[0])))


def _balance(text: str) -> str:
    """Return ``timeout_iters``, with which TensorRT-LLM balances attention data parallelism.

    The result is ``default`` if the script does not set it, and empty without balancing.
    """
    if "enable_balance=True" not in text:
        return ""
    return _said(r"\btimeout_iters=(\d+)", text) or "default"


def _drafts(text: str) -> str:
    """Return settings of speculative decoding as text: method and number of draft tokens."""
    if not text:
        return ""
    if layers := _said(r'"num_nextn_predict_layers": (\d+)', text):
        return f"MTP {layers}"
    found = dict(each.partition("=")[::2] for each in text.split())
    return f"{found['speculative-algorithm']} {found['speculative-num-steps']}"


def _environment(text: str) -> str:
    return " ".join(each for each in text.split() if not each.startswith(_IDLE))


def main(source: Path) -> None:
    table = compact(pd.read_csv(source, dtype=str, keep_default_na=False))
    target = data_folder("engines") / "launch_facts.csv"
    write_frame(table, target)
    print(f"{len(table):,} lines, {target.stat().st_size:,} bytes in {target.name}")


if __name__ == "__main__":
    typer.run(main)
