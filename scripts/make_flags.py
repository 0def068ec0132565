"""Write the Go struct of the engine's flags and its defaults anew: ``make flags``."""

from __future__ import annotations

from pathlib import Path

from generating.go_flags import write_go_flags

if __name__ == "__main__":
    for path in write_go_flags(Path(__file__).resolve().parents[1]):
        print(path)
