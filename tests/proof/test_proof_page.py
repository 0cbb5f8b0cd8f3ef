"""index.html in a browser: green where WebAssembly computes what was emulated; else red, with the first tensor that differs."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from qfunc import targets
from qfunc.lowering import Node
from qfunc.specs import edit
from tests.proof.packages import flipped, package, spoil_tensor

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
WEB = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
TARGET = edit.cpu("wasm-simd")(targets.onnxruntime)


class Silent(SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")  # as the servers of npm packages do
        super().end_headers()


@contextlib.contextmanager
def served(folder: Path, host: str = "laptop") -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{host}:{server.server_port}"  # as for a phone, and unlike localhost, no secure context
        finally:
            server.shutdown()


def shown(folder: Path, profile: Path) -> tuple[str, str, list[list[str]], str]:
    """Return (state, verdict, rows, whole page) in a browser without a network."""
    if BROWSER is None:
        pytest.skip("no browser is installed")
    offline = "--host-resolver-rules=MAP laptop 127.0.0.1, MAP cdn 127.0.0.1, MAP * ~NOTFOUND"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", offline, f"--user-data-dir={profile}")
    with served(folder) as address:
        command = (BROWSER, *options, "--virtual-time-budget=60000", "--dump-dom", f"{address}/index.html")
        page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    state, verdict = re.search(r'<body class="(\w*)"', page), re.search(r'<div id="verdict"[^>]*>(.*?)</div>', page, re.DOTALL)
    assert state is not None, page
    assert verdict is not None, page
    rows = [re.findall(r"<td[^>]*>([^<]*)<", row) for row in re.findall(r"<tr[^>]*>(<td.*?)</tr>", page)]
    return state[1], unescape(" ".join(re.sub(r"<[^>]*>", " ", verdict[1]).split())), rows, page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package, with the files of onnxruntime-web beside."""
    if Node().missing():
        pytest.skip("Node is not set up")
    place = package(TARGET).save(tmp_path / "package")
    for name in WEB:
        shutil.copy(Path(Node().folder, "node/node_modules/onnxruntime-web/dist", name), place / name)
    return place


def test_a_package_is_green_without_a_network(folder: Path, tmp_path: Path) -> None:
    state, verdict, rows, page = shown(folder, tmp_path / "profile")
    assert (state, verdict) == ("equal", "Equal 0 of 6,876 elements of 7 tensors differ on 4 examples.")
    assert rows == [
        [name, count, "0", "0", "equal"]
        for name, count in (
            ("x", "756"), ("relu", "2,016"), ("other", "2,016"), ("relu_1", "2,016"), ("mean", "32"), ("head", "20"),
            ("output 0", "20"),
        )
    ]  # fmt: skip
    assert re.search(r"<dd>Chrome [\d.]+, .*?</dd>", page)
    assert "<dd>onnxruntime, wasm-simd</dd>" in page


def test_a_byte_of_the_weights_or_of_the_codes_is_red(folder: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    spoil_tensor(folder, "mean.codes")
    state, verdict, rows, _ = shown(folder, tmp_path / "profile")
    assert (state, verdict) == ("failed", "Different The first tensor that differs is mean.")
    assert [r[0] for r in rows if r[2] != "0"] == ["mean"]
    content = (folder / "model.onnx").read_bytes()
    weights = next(i for i in onnx.load_from_string(content).graph.initializer if i.name.startswith("other.weight"))
    (folder / "model.onnx").write_bytes(flipped(content, content.index(weights.raw_data) + 40))
    state, verdict, rows, _ = shown(folder, tmp_path / "profile")
    assert (state, verdict) == ("failed", "Different The first tensor that differs is other.")


def test_onnxruntime_web_may_be_elsewhere(folder: Path, tmp_path: Path) -> None:
    with served(folder, "cdn") as address:
        place = package(TARGET, onnxruntime_web=f"{address}/").save(tmp_path / "linked")
        state, verdict, _, _ = shown(place, tmp_path / "profile")
    assert (state, verdict) == ("equal", "Equal 0 of 6,876 elements of 7 tensors differ on 4 examples.")


def test_a_network_without_an_exact_tensor_is_not_green(folder: Path, tmp_path: Path) -> None:
    proof = json.loads((folder / "proof.json").read_text())
    inexact = [entry | {"exact": False} for entry in proof["tensors"]]
    (folder / "proof.json").write_text(json.dumps(proof | {"tensors": inexact}))
    state, verdict, _, _ = shown(folder, tmp_path / "profile")
    assert (state, verdict) == ("close", "Close 0 of 0 elements of 0 tensors differ on 4 examples; 7 others are close.")


def test_a_page_without_onnxruntime_web_says_what_to_copy(folder: Path, tmp_path: Path) -> None:
    (folder / WEB[0]).unlink()
    state, verdict, rows, page = shown(folder, tmp_path / "profile")
    assert (state, verdict, rows) == ("failed", "Not checked no onnxruntime-web", [])
    assert f"Copy {', '.join(WEB)} from the folder dist of the npm package onnxruntime-web to http://laptop:" in page
