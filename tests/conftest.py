"""On a CPU without VNNI the tests compare with ONNX Runtime by weights of 7 bits, whose sums AVX2 does not saturate.

Each worker, and each process that a test starts, has one thread: threads of several workers wait for each other.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from collections.abc import Generator

import pytest

from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.transforms.verification import gains
from tests.onnxruntime_target import ONNXRUNTIME


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
def pytest_runtest_call() -> Generator[None, object, object]:
    """Tests over all targets skip those whose files need an extra that is not installed."""
    try:
        return (yield)
    except (QfuncError, AssertionError) as e:  # check_target tells of an error by an AssertionError
        for package in ("ai-edge-litert", "executorch", "ncnn", "openvino", "tosa-tools"):
            if f"the package {package} is not installed" in str(e):
                pytest.skip(f"{package} is not installed")
        raise
