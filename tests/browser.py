"""A browser for the tests of pages: Chromium, driven over its DevTools pipe.

Only the standard library is needed; tests that use the fixture `chromium` skip where there is none.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_S = 120.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
)


class Browser:
    """One tab, and the messages that go to and fro."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (theirs, self.outgoing), (self.incoming, ours) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, ours)]
        self.process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            preexec_fn=lambda: [os.dup2(end, at) for end, at in zip(ends, (3, 4), strict=True)],
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs, ours, *ends):
            os.close(end)
        self.buffer, self.number, self.session = b"", 0, None
        self.faults: list[str] = []
        self.loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=1400,
            height=1100,
            deviceScaleFactor=1,
            mobile=False,
        )

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.outgoing, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self.number:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.incoming], [], [], PATIENCE_S)
            assert ready, "the browser says nothing"
            self.buffer += os.read(self.incoming, 1 << 16)
        text, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._watch(message.get("method", ""), message.get("params", {}))
        return message

    def _watch(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.faults.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.faults.append(json.dumps(params["args"]))
        elif method == "Page.loadEventFired":
            self.loaded = True

    def open(self, page: str) -> None:
        file = self.folder / "page.html"
        file.write_text(page, encoding="utf-8")
        self.visit(file)

    def visit(self, file: Path) -> None:
        """Show a page that lies on the disk."""
        self.faults, self.loaded = [], False
        self.call("Page.navigate", url=file.as_uri())
        while not self.loaded:
            self._receive()
        self.see("null")

    def see(self, expression: str) -> Any:
        """The value of an expression, once the page has drawn what it owes."""
        drawn = "for (let n = 0; n < 2; n += 1) await new Promise(requestAnimationFrame);"
        code = f"(async () => {{ {drawn} return ({expression}); }})()"
        done = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.outgoing)
        os.close(self.incoming)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()
