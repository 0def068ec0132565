"""Write the page to play with that the site shows; building the docs runs it."""

from __future__ import annotations

from pathlib import Path

from pinn.interface.commands.explore import write_explore_page

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    out = ROOT / "docs/made/play.html"
    flags = {"tensor_parallel_size": [1, 2, 4]}
    write_explore_page(out, "Qwen/Qwen3-30B-A3B", ["H100", "H200", "B200"], None, flags)


if __name__ == "__main__":
    main()
