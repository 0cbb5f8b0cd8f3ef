"""check_target without models draws networks of the ops that a target takes, and says so where there are none."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, Phase, given, settings

from qfunc.errors import SpecError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.lowering import QdqLowering
from qfunc.ops.node import kind_of
from qfunc.specs import (
    Algorithm,
    Attr,
    FloatKernel,
    Int,
    Kernel,
    Op,
    Refuse,
    Rule,
    Runtime,
    Scheme,
    Target,
    ZeroPoint,
)
from qfunc.targets.runtimes import OnnxRuntimeRunner
from qfunc.testing import check_target
from qfunc.testing.default_networks import default_networks
from qfunc.testing.strategies import small_models
from qfunc.transforms.quantize import quantize
from tests.onnxruntime_target import ONNXRUNTIME

BYTE = Scheme(Int(8), zero_point=ZeroPoint())
ADDER = Target(
    name="adder",
    rules=Rule(Op("add"), input=BYTE, output=BYTE),
    kernels=(Kernel(Op("add"), FloatKernel()),),
    runtime=Runtime("ONNX Runtime", runner=OnnxRuntimeRunner(optimise=False)),
    lowering=QdqLowering(),
    source="invented",
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)
"""A chip that quantizes additions alone."""
KNOWN = Op(("conv", "linear", "add", "relu", "max_pool", "flatten"))
LAYERS = evolve(ONNXRUNTIME, legality=Refuse(~KNOWN, because="the engine has no such operator", do="Compute it outside."))
"""A chip that refuses global pools, products, concat and relu6."""
DRAW = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[*HealthCheck],
)


def drawn(strategy) -> list[tuple[str, tuple[torch.Tensor, ...]]]:
    found = []

    @DRAW
    @given(strategy)
    def draw(model) -> None:
        found.append((repr(model[0]), model[1] if isinstance(model[1], tuple) else (model[1],)))

    draw()
    return found


def kinds(target: Target) -> set[str]:
    """The kinds of ops in the networks that are drawn, as `quantize` sees them."""
    found: set[str] = set()

    @DRAW
    @given(default_networks(target))
    def draw(model) -> None:
        nodes = quantize(target)(model[0]).graph.nodes
        found.update(k for n in nodes if n.op == "call_function" and (k := kind_of(n)) is not None)

    draw()
    return found


def test_a_target_of_all_ops_is_checked_with_small_models() -> None:
    wanted, found = drawn(small_models()), drawn(default_networks(ONNXRUNTIME))
    assert [a for a, _ in found] == [a for a, _ in wanted]
    assert all(torch.equal(a[0], b[0]) for (_, a), (_, b) in zip(found, wanted, strict=True))


def test_refused_ops_are_not_drawn() -> None:
    assert {"conv", "linear", "add", "max_pool"} <= kinds(LAYERS) <= {"conv", "linear", "add", "relu", "max_pool", "flatten"}


def test_a_chip_of_one_op_has_networks_of_it() -> None:
    assert kinds(ADDER) == {"add"}


@pytest.mark.parametrize("attribute", ["groups", "dilation"])
def test_ops_with_refused_attributes_are_not_drawn(attribute: str) -> None:
    refused = Op("conv") & ~Attr(attribute, 1 if attribute == "groups" else (1, 1))
    dense = evolve(ONNXRUNTIME, legality=Refuse(refused, because="not in the manual", do="Use another."))
    assert "conv" in kinds(dense)  # else quantize refuses one


@pytest.mark.parametrize("target", [ADDER, LAYERS], ids=lambda t: t.name)
def test_right_chips_pass_without_models(target: Target) -> None:
    check_target(target, examples=2)


def test_a_wrong_chip_of_one_op_is_found() -> None:
    def run(artifact, inputs):
        return [value + 1 for value in OnnxRuntimeRunner(optimise=False).run(artifact, inputs)]

    with pytest.raises(AssertionError, match=r"(?s)law 'emulation_matches_the_runtime'.*OnePair\('add'"):
        check_target(ADDER, run=run, examples=2)


def test_a_chip_of_other_ops_needs_models() -> None:
    other = evolve(ADDER, rules=Rule(Op("layer_norm"), input=BYTE, output=BYTE), kernels=())
    with pytest.raises(SpecError) as caught:
        check_target(other, examples=1)
    assert str(caught.value) == (
        "check_target(adder): found no such ops in the networks that it draws, wanted ops that the target quantizes and does "
        "not refuse. Give models= of its ops, (module, input) pairs. check_each_kind has no networks of its kinds either."
    )
