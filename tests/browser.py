"""A headless Chromium that asks nobody outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

_SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def browse(page: Path, folder: Path, *switches: str) -> str:
    """Open a page, with a profile in a folder; returns what Chromium prints."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [CHROMIUM, *_SWITCHES, profile, *switches, page.as_uri()]
    found = subprocess.run(command, check=True, capture_output=True, timeout=240, text=True)
    return found.stdout


class Tab:
    """A page in a Chromium that is asked over its pipe (the DevTools protocol): keys are real."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        asked, self._ask = os.pipe()
        self._answers, answered = os.pipe()
        os.set_inheritable(asked, True)
        os.set_inheritable(answered, True)
        # Chromium reads from 3 and writes to 4.
        command = [CHROMIUM, *_SWITCHES, f"--user-data-dir={folder / 'tab'}",
                   "--remote-debugging-pipe"]  # fmt: skip
        moved = f'exec "$@" 3<&{asked} 4>&{answered}'
        shell = ["bash", "-c", moved, "chromium", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(asked, answered), stderr=subprocess.DEVNULL
        )
        os.close(asked)
        os.close(answered)
        self._left, self._number, self._session = b"", 0, {}
        self._loaded = False
        #: What the page said wrong, and every address that it asked for.
        self.errors: list[str] = []
        self.addresses: list[str] = []
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        attached = self.do("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.do(f"{domain}.enable")

    def open(self, page: Path, width: int, height: int = 900) -> None:
        """Show a file at a width."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height,
                deviceScaleFactor=1, mobile=False)  # fmt: skip
        self._loaded = False
        self.do("Page.navigate", url=page.as_uri())
        while not self._loaded:  # the answer to anything brings the news of it
            time.sleep(0.05)
            self.value("0")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, a promise's value too."""
        found = self.do("Runtime.evaluate", expression=expression, returnByValue=True,
                        awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        of_key = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.do("Input.dispatchKeyEvent", type="keyDown", **of_key)
        self.do("Input.dispatchKeyEvent", type="keyUp", **of_key)

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | self._session
        os.write(self._ask, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, method: str | None, about: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.addresses.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.errors.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(about["entry"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._answers, 1 << 16)
            assert more, "Chromium ended"
            self._left += more
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._ask)
        os.close(self._answers)
