"""On a CPU without VNNI the tests compare with ONNX Runtime by weights of 7 bits, whose sums AVX2 does not saturate.

Each worker, and each process that a test starts, has one thread: threads of several workers wait for each other.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import gc
from collections.abc import Generator
from pathlib import Path

import pytest

from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.transforms.verification import gains
from tests.onnxruntime_target import ONNXRUNTIME, REASON


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--also=FILE`: the tests, functions and files that FILE names, one a line, count as thorough."""
    parser.addoption("--also", type=Path, metavar="FILE")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that `--also` names."""
    file = config.getoption("also")
    named = set() if file is None else {*file.read_text().splitlines()}
    for item in items if named else ():
        function = item.nodeid.partition("[")[0]
        if not named.isdisjoint((item.nodeid, function, function.partition("::")[0])):
            item.add_marker("thorough")


def pytest_collection_finish() -> None:
    """Full garbage collections skip the modules and the collected tests, which live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def exact_onnxruntime() -> Generator[None]:
    """While tests run, `targets.onnxruntime` is what this CPU computes exactly; values of modules import ONNXRUNTIME."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "onnxruntime", ONNXRUNTIME)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_float_files() -> Generator[None]:
    """While tests run, `verify` deploys and times no float file; the fixture `float_files` of a test has them again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gains, "float_file", lambda *_: "tests time no file")
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Tests over all targets skip those whose files need an extra, or another processor, that is not here."""
    try:
        return (yield)
    except (QfuncError, AssertionError) as e:  # check_target tells of an error by an AssertionError
        for package in ("ai-edge-litert", "executorch", "ncnn", "openvino", "tosa-tools"):
            if f"the package {package} is not installed" in str(e):
                pytest.skip(f"{package} is not installed")
        if REASON and ("not comparable" in str(e) or "openvino" in item.nodeid):  # OpenVINO's kernels saturate there as well
            pytest.skip(f"not comparable: {REASON}")
        raise
