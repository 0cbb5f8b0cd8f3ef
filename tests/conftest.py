"""On a CPU without VNNI the tests compare with ONNX Runtime by weights of 7 bits, whose sums AVX2 does not saturate.

Each worker, and each process that a test starts, has one thread: threads of several workers wait for each other.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")  # AMX rounds sums in another order

import gc
from collections.abc import Generator
from pathlib import Path
from zlib import crc32

import pytest

from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.transforms.verification import gains
from tests.onnxruntime_target import ONNXRUNTIME, REASON


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--also=FILE`: the tests, functions and files that FILE names, one a line, count as thorough.

    `--part=K/N`: of the thorough tests, those of one of N parts; a function is whole.
    """
    parser.addoption("--also", type=Path, metavar="FILE")
    parser.addoption("--part", type=_part, default=(0, 1), metavar="K/N")


def _part(text: str) -> tuple[int, int]:
    place, count = map(int, text.split("/"))
    return place % count, count


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that `--also` names, and leave out the thorough ones of other parts."""
    file = config.getoption("also")
    named = set() if file is None else {*file.read_text().splitlines()}
    for item in items if named else ():
        function = item.nodeid.partition("[")[0]
        if not named.isdisjoint((item.nodeid, function, function.partition("::")[0])):
            item.add_marker("thorough")
    place, count = config.getoption("part")
    if count > 1:
        chosen = [i for i in items if "thorough" not in i.keywords or crc32(_function(i)) % count == place]
        config.hook.pytest_deselected(items=[item for item in items if item not in {*chosen}])
        items[:] = chosen


def _function(item: pytest.Item) -> bytes:
    return item.nodeid.partition("[")[0].encode()


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
