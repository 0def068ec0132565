"""Post the entries of this folder to the training server of llm-d's latency predictor.

python3 post.py http://localhost:8000 [--per-request 1000] [--flush]

The script requires only Python 3.8 or later. It waits until the server is ready, posts
entries.jsonl to /add_training_data_bulk, and prints the response of /data/status.
"""

import argparse
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

#: Times in seconds. ``_PATIENCE_S``: timeout of an HTTP request. ``_START_S``: maximum time to wait
#: for a server to start.
_PATIENCE_S, _START_S = 60, 120


def main() -> int:
    """Post the entries to the training server, and return the exit status of the script."""
    arguments = _arguments()
    url = arguments.url.rstrip("/")
    lines = arguments.entries.read_text(encoding="utf-8").splitlines()
    if not _is_ready(url):
        print(
            f"{url}/readyz did not return status 200 within {_START_S} s: check that "
            "this is the address of the training server"
        )
        return 1
    if arguments.flush:
        print("flushed:", _ask(f"{url}/flush", b"")[1])
    size = max(arguments.per_request, 1)
    for begin in range(0, len(lines), size):
        part = lines[begin : begin + size]
        body = '{"entries": [' + ",".join(part) + "]}"
        status, said = _ask(f"{url}/add_training_data_bulk", body.encode())
        if status != 202:
            print(f"entries {begin + 1} to {begin + len(part)}: status {status}, not 202: {said}")
            return 1
    print(f"{len(lines)} entries posted to {url}/add_training_data_bulk")
    print(_ask(f"{url}/data/status")[1])
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="address of the training server, such as http://localhost:8000")
    parser.add_argument(
        "--per-request", type=int, default=1000, help="number of entries in a request"
    )
    parser.add_argument("--flush", action="store_true", help="delete the server's entries first")
    beside = Path(__file__).with_name("entries.jsonl")
    parser.add_argument("--entries", type=Path, default=beside, help="file of entries")
    return parser.parse_args()


def _is_ready(url: str) -> bool:
    """Wait for a server to start; return whether it became ready."""
    end = time.monotonic() + _START_S
    while _ask(f"{url}/readyz")[0] != 200:
        if time.monotonic() > end:
            return False
        time.sleep(1)
    return True


def _ask(url: str, body: "bytes | None" = None) -> "tuple[int, str]":
    """Send a GET, or a POST if there is a body; return the HTTP status (0 if no reply) and text."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (urllib.error.URLError, OSError) as error:
        return 0, str(error)


if __name__ == "__main__":
    sys.exit(main())
