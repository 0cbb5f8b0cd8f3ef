"""Functions that return targets: an argument that they do not take is a SpecError, there or in `quantize`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.specs import Target
from qfunc.specs.formats import MATMUL_4BITS

NEEDED: dict[str, tuple[Any, ...]] = {
    "academic": (8, 8),
    "academic_nlp": (8, 8),
    "compressed_tensors": ("W4A16",),
    "gguf": ("Q4_0",),
}
FUNCTIONS = {n: f for n in dir(targets) if inspect.isfunction(f := getattr(targets, n))}
ARGUMENTS = [(name, parameter) for name, f in FUNCTIONS.items() for parameter in inspect.signature(f).parameters]
WORDS = ("W4A16", "w4a16", "FP8", "NVFP4", "Q4_K", "Q4_K_M", "{}", "[]", "")
VALUES = (
    st.integers(-2, 70) | st.sampled_from((128, 192, 256, 512, 4096, 2**40)) | st.floats() | st.sampled_from(WORDS) | st.text()
    | st.none() | st.booleans() | st.binary() | st.sampled_from((MATMUL_4BITS, Target, object(), (8,), [8], {8: 8}))
)  # fmt: skip


def test_all_functions_are_known() -> None:
    needed = [
        name for name, f in FUNCTIONS.items() if any(p.default is p.empty for p in inspect.signature(f).parameters.values())
    ]
    assert needed == sorted(NEEDED)
    assert len(ARGUMENTS) >= 20


@pytest.mark.parametrize(("name", "parameter"), ARGUMENTS)
@given(value=VALUES)
@settings(max_examples=60, deadline=None)
def test_each_argument_is_taken_or_refused(name: str, parameter: str, value: Any) -> None:
    arguments = dict(zip(inspect.signature(FUNCTIONS[name]).parameters, NEEDED.get(name, ()), strict=False))
    try:
        target = FUNCTIONS[name](**{**arguments, parameter: value})
        assert isinstance(target, Target)
        qfunc.quantize(target)(nn.Linear(128, 64))
    except SpecError:
        pass


SCHEMES = (
    "'W4A16', 'W4A16_ASYM', 'W8A8', 'FP8', 'FP8_CHANNEL', 'FP8_DYNAMIC', 'MXFP4A16', 'NVFP4A16', 'W4AFP8', 'MXFP4', 'NVFP4'"
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: targets.compressed_tensors("x"),
            f"compressed_tensors, scheme: found 'x', wanted one of {SCHEMES}. Choose one of them.",
        ),
        (
            lambda: targets.compressed_tensors("w4a16"),
            f"compressed_tensors, scheme: found 'w4a16', wanted one of {SCHEMES}. Write 'W4A16'.",
        ),
        (
            lambda: targets.onnxruntime_nbits(accuracy_level="4"),
            "onnxruntime_nbits, accuracy_level: found '4', wanted an int. Give a value such as int(...).",
        ),
        (
            lambda: targets.onnxruntime_nbits(stacked_experts=1),
            "onnxruntime_nbits, stacked_experts: found 1, wanted a bool. Give True or False.",
        ),
        (
            lambda: targets.openvino_blocks(scheme="x"),
            "openvino_blocks, scheme: found 'x', wanted a Scheme. Give a value such as Scheme(...).",
        ),
        (
            lambda: targets.onnxruntime_nbits(embedding_bits=0),
            "onnxruntime_nbits, embedding_bits: found 0, wanted an int in [2, 64]. Give such a number.",
        ),
        (
            lambda: targets.onnxruntime_nbits(cache_bits=0),
            "onnxruntime_nbits, cache_bits: found 0, wanted an int in [2, 64]. Give such a number.",
        ),
        (
            lambda: targets.onnxruntime_nbits(bits=1),
            "onnxruntime_nbits, bits: found 1, wanted an int in [2, 64]. Give such a number.",
        ),
        (
            lambda: targets.onnxruntime_nbits(block="32"),
            "onnxruntime_nbits, block: found '32', wanted an int in [1, inf]. Give such a number.",
        ),
        (
            lambda: targets.onnxruntime_nbits(threads=0),
            "onnxruntime_nbits, threads: found 0, wanted an int in [1, inf]. Give such a number.",
        ),
        (
            lambda: targets.onnxruntime_nbits(accuracy_level=9),
            "onnxruntime_nbits, accuracy_level: found 9, wanted an int in [0, 4]. Give such a number.",
        ),
        (
            lambda: targets.openvino_blocks(bits=0),
            "openvino_blocks, bits: found 0, wanted an int in [2, 64]. Give such a number.",
        ),
        (
            lambda: targets.openvino_blocks(block=0),
            "openvino_blocks, block: found 0, wanted an int in [1, inf]. Give such a number.",
        ),
        (
            lambda: targets.executorch_8da4w(block=0),
            "executorch_8da4w, block: found 0, wanted an int in [1, inf]. Give such a number.",
        ),
        (
            lambda: targets.compressed_tensors("W4A16", block=0),
            "compressed_tensors, block: found 0, wanted an int in [1, inf]. Give such a number.",
        ),
    ],
)  # fmt: skip
def test_messages_of_the_functions(make: Any, message: str) -> None:
    with pytest.raises(SpecError) as error:
        make()
    assert str(error.value) == message


def test_blocks_that_xnnpack_lacks_are_refused() -> None:
    with pytest.raises(SpecError) as error:
        qfunc.quantize(targets.executorch_8da4w(16))(nn.Linear(128, 64))
    assert str(error.value) == (
        "target 'executorch_8da4w_b16', op 'linear': found the kind 'linear', wanted an op that it runs: XNNPACK, "
        "qd8-f32-qb4w: blocks are multiples of 32. Choose a block of 32, 64 or 128."
    )
