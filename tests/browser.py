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
# Words for the scripts of the tests: a panel's plot, and the middle of a pass in it.
WORDS = """
const plot = (number) => document.querySelectorAll(".plot")[number];
const find = (number, name) => plot(number).querySelector(`[data-pass="${name}"]`);
const box = (node) => {
  const at = node.getBoundingClientRect();
  return [at.x, at.y, at.width, at.height];
};
const center = (node) => {
  const [x, y, width, height] = box(node);
  return [x + width / 2, y + height / 2];
};
const frame = () => new Promise(requestAnimationFrame);
const tip = () => {
  const node = document.getElementById("tip");
  return node.hidden ? null : node.innerText;
};
"""


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
        code = f"(async () => {{ {WORDS} await frame(); await frame(); return ({expression}); }})()"
        done = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def mouse(self, kind: str, at: list[float], **more: object) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **more)

    def move(self, at: list[float], pressed: bool = False) -> None:
        self.mouse("mouseMoved", at, button="left" if pressed else "none", buttons=int(pressed))

    def press(self, at: list[float]) -> None:
        self.mouse("mousePressed", at, button="left", clickCount=1)

    def release(self, at: list[float]) -> None:
        self.mouse("mouseReleased", at, button="left", clickCount=1)

    def key(self, key: str, text: str = "") -> None:
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

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
