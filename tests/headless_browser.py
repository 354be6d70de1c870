"""Chromium without a window, driven by its DevTools protocol: what a page asks for, complains of, and how wide it is."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank",
)  # fmt: skip


def chromium() -> str:
    """The browser's program; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("needs Chromium (apt-get install chromium)")


class Page:
    """One tab. ``errors``: console errors and uncaught exceptions; ``requests``: every address that was asked for."""

    def __init__(self, socket: websocket.WebSocket) -> None:
        self._socket, self._next = socket, 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One DevTools call and its result."""
        self._next += 1
        number = self._next
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Show a file at a width, and wait until it has loaded."""
        self.resize(width)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        give_up = time.monotonic() + 120
        while not self.loaded:
            assert time.monotonic() < give_up, "the page did not load"
            self._event(json.loads(self._socket.recv()))

    def resize(self, width: int) -> None:
        """The window's width in pixels; below 600 as on a phone."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def too_wide(self, frames: str = ".scroll", inside: str = "main") -> list[str]:
        """Elements that stick out of the page to the right, those inside a scrolling frame left out; first the page itself.

        ``frames`` and ``inside``: CSS selectors of what may scroll by itself, and of what is looked at.
        """
        return list(
            self.value(
                """((frames, inside) => { const w = document.documentElement.clientWidth, out = [];
                if (document.documentElement.scrollWidth > w) out.push('page: ' + document.documentElement.scrollWidth + ' > ' + w);
                for (const e of document.querySelectorAll(inside + ' *')) if (!e.closest(frames) && e.getBoundingClientRect().right > w + 0.5)
                  out.push(e.tagName + '.' + e.className);
                return out })"""
                + f"({json.dumps(frames)}, {json.dumps(inside)})"
            )
        )

    def screenshot(self, path: Path, *, height: int = 2400) -> None:
        """The page's first ``height`` pixels as a PNG: for people, no test compares it."""
        width = self.value("document.documentElement.clientWidth")
        whole = min(height, self.value("document.documentElement.scrollHeight"))
        clip = {"x": 0, "y": 0, "width": width, "height": whole, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A running Chromium with one tab; its profile lies in ``folder``."""
    program = chromium()
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port_file = folder / "DevToolsActivePort"
        give_up = time.monotonic() + 180
        while not (port_file.exists() and port_file.read_text().strip()):
            assert process.poll() is None, f"Chromium ended with {process.returncode}"
            assert time.monotonic() < give_up, "Chromium did not start"
            time.sleep(0.1)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=120) as answer:
            [tab] = [t for t in json.load(answer) if t["type"] == "page"]
        socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=180)
        try:
            yield Page(socket)
        finally:
            socket.close()
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
