"""The worker in a browser: a server for its page, between the page and the standard input and output of this process.

    python browser.py FOLDER PROGRAM

FOLDER has node_modules, PROGRAM is Chromium. The calls that arrive are the body of one response that has no
end, each answer is a request. Python executes this file by its path, so it imports nothing of qfunc.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

_HERE = Path(__file__).resolve().parent
_TYPES = {".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
_OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
_OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-breakpad",
    _OFFLINE,
)
_START = 60.0
"""Seconds in which the page must ask for its calls."""


class Bridge(ThreadingHTTPServer):
    """The server of one page, whose addresses hold a secret, so that no other program is answered."""

    daemon_threads = True

    def __init__(self, modules: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.prefix, self.modules, self.ended = f"/{secrets.token_urlsafe(16)}/", modules.resolve(), threading.Event()
        self.asked, self.reason, self.calls, self.answers = threading.Event(), "", sys.stdin.fileno(), os.dup(1)

    def end(self, reason: str) -> None:
        """Let the process end; with a reason, as an error."""
        if not self.ended.is_set():
            self.reason = reason
        self.ended.set()
        self.asked.set()


class Handler(BaseHTTPRequestHandler):
    """The page, its scripts, and the calls; the answers to them."""

    @property
    def _bridge(self) -> Bridge:
        return cast(Bridge, self.server)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer with a file, or with all calls."""
        name = self.path.removeprefix(self._bridge.prefix)
        if self.path == name:
            return self.send_error(404)
        if name == "calls":
            self._head("application/octet-stream")
            return self._calls()
        folder = self._bridge.modules if "/" in name else _HERE
        file = (folder / name).resolve()
        if not file.is_relative_to(folder) or file.suffix not in _TYPES or not file.is_file():
            return self.send_error(404)
        self._head(_TYPES[file.suffix])
        self.wfile.write(file.read_bytes())

    def do_POST(self) -> None:
        """Pass an answer on, or the error with which the page ends."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == f"{self._bridge.prefix}answer":
            with suppress(OSError), os.fdopen(os.dup(self._bridge.answers), "wb") as answers:
                answers.write(content)
        elif self.path == f"{self._bridge.prefix}failed":
            self._bridge.end(content.decode(errors="replace"))
        else:
            return self.send_error(404)
        self._head("text/plain")

    def _head(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def _calls(self) -> None:
        self._bridge.asked.set()
        while True:
            ready, _, _ = select.select([self._bridge.calls, self.connection], [], [])
            if self.connection in ready:  # a page sends nothing here, so it has gone
                return self._bridge.end("the page has gone")
            if not (chunk := os.read(self._bridge.calls, 1 << 20)):
                return self._bridge.end("")
            with suppress(OSError):
                self.wfile.write(chunk)


def main(folder: str, program: str) -> str:
    """Answer calls until the other process ends; return why it ended before, or ""."""
    profile = tempfile.mkdtemp(prefix="qfunc-browser-")
    server = Bridge(Path(folder, "node_modules"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sandbox = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()  # Chromium has none for root
    address = f"http://127.0.0.1:{server.server_port}{server.prefix}browser.html"
    command = (program, *_OPTIONS, *sandbox, f"--user-data-dir={profile}", address)
    browser = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    threading.Thread(target=lambda: server.end(f"{program} ended with {browser.wait()}"), daemon=True).start()
    gone = select.poll()
    gone.register(server.calls, select.POLLHUP)
    late = time.monotonic() + _START
    while not server.asked.wait(0.05):
        if gone.poll(0):
            server.end("")
        elif time.monotonic() > late:
            server.end(f"{program} has not loaded the page in {_START:.0f} seconds")
    server.ended.wait()
    with suppress(ProcessLookupError):
        os.killpg(browser.pid, signal.SIGKILL)
    browser.wait()
    shutil.rmtree(profile, ignore_errors=True)
    return server.reason


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
