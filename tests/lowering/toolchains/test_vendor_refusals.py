"""What a vendor's file cannot say is refused by the tensor's name; several lowerings stand together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve

from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.lowering import Combined, QdqLowering
from qfunc.lowering.program import Program
from qfunc.specs import Int, Log
from qfunc.targets.runtimes import PplDspLowering, SnpeEncodings, StpuLowering, TensorRtRanges
from tests.lowering.onnx.test_qdq_nodes import parts
from tests.lowering.toolchains.vendor_net import Net, made

# what a format cannot say


def changed(name: str, tensor: str, **fields: Any) -> DeployError:
    _, model, sites, _ = made(name)
    given = tuple(evolve(s, **fields) if s.name == tensor else s for s in sites)
    assert given != sites
    with pytest.raises(DeployError) as caught:
        getattr(targets, name).lowering.lower(Program(model, given))
    return caught.value


REFUSED = (
    ("tensorrt", "x", {"zero_point": (3,)},
     "activation 'x': found zero point 3, wanted 0: a clip range of TensorRT has no zero points. "
     "Edit the scheme: zero_point=None."),
    ("tensorrt", "x", {"format": Int(4)},
     "activation 'x': found Int(4), wanted Int(8) or Int(8, low=-127): a clip range of TensorRT is 127 steps. "
     "Edit the scheme: format=Int(8, low=-127)."),
    ("tensorrt", "x", {"scale": (0.5, 0.25), "zero_point": (0, 0), "axis": 1},
     "activation 'x': found 2 scales, wanted one: a clip range of TensorRT has one number per tensor. "
     "Edit the scheme: Scale(PerTensor())."),
    ("snpe", "relu", {"format": Log()},
     "activation 'relu': found Log(), wanted integers: an encoding has no other formats. Edit the scheme: format=Int(8)."),
    ("snpe", "relu", {"format": Int(8, low=-127)},
     "activation 'relu': found Int(8, low=-127), wanted Int(8): encodings have all codes of their type. "
     "Edit the scheme: format=Int(8)."),
    ("snpe", "a.weight", {"format": Int(5)},
     "weight 'a.weight': found Int(5), wanted integers of 2, 4, 8, 16 bits, or Int(32): encodings have no others. "
     "Edit the scheme: format=Int(8)."),
    ("ppl_w8a16", "a.weight", {"format": Log()},
     "weight 'a.weight': found Log(), wanted integers: PPL's JSON has no other formats. Edit the scheme: format=Int(8)."),
    ("ppl_cuda", "b.weight", {"zero_point": (0, 0, 7, 0, 0)},
     "weight 'b.weight': found zero point 7, wanted 0: PPL-CUDA's text has no zero points. Edit the scheme: zero_point=None."),
    ("stpu", "x", {"format": Int(8)},
     "activation 'x': found Int(8), wanted Int(8, low=-127): ranges of STPU are 127 steps. "
     "Edit the scheme: format=Int(8, low=-127)."),
    ("stpu", "a.bias", {"format": Int(8, low=-127), "scale": (0.5,), "zero_point": (0,), "axis": None},
     "bias 'a.bias': found Int(8, low=-127), wanted a bias of scale s_w s_x: STPU has no other. "
     "Give its rule bias=DerivedQParams()."),
    ("stpu", "sigmoid", {"scale": (0.5,)},
     None),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tensor", "fields", "message"), REFUSED, ids=[f"{n}-{t}-{k}" for n, t, f, _ in REFUSED for k in [*f][:1]]
)
def test_what_a_format_cannot_say_is_refused(name: str, tensor: str, fields: dict[str, Any], message: str | None) -> None:
    error = str(changed(name, tensor, **fields))
    if message is None:
        assert error.startswith("activation 'sigmoid': found the range +-63.5, wanted +-")
        message = error
    assert error == message


def test_two_quantizers_on_one_tensor_are_refused() -> None:
    _, model, sites, _ = made("snpe")
    other = evolve(sites[0], name="again", scale=(0.5,))
    with pytest.raises(DeployError) as caught:
        SnpeEncodings().lower(Program(model, (*sites, other)))
    assert str(caught.value) == (
        "tensor 'x': found two quantizers, 'x' and 'again', wanted one quantizer, because the file has one entry for "
        "each tensor. "
        "Edit the target's rules so that all its readers share one quantizer."
    )
    twice = Program(model, (*sites, evolve(sites[0], name="again")))
    assert SnpeEncodings().lower(twice) == SnpeEncodings().lower(Program(model, sites))


def test_several_factors_are_refused_by_stpu() -> None:
    torch.manual_seed(0)
    _, model, sites = parts(targets.stpu, Net([[[1.0]], [[2.0]], [[0.5]], [[1.0]]]), torch.randn(2, 3, 8, 6))
    with pytest.raises(DeployError) as caught:
        StpuLowering().lower(Program(model, sites))
    assert str(caught.value) == (
        "node 'mul', factor 'operand_of_mul': found 3 factors, wanted one factor, because the weights have one scale. "
        "Multiply the weights of the convolution by the factors before quantizing."
    )


def test_a_convolution_without_ranges_is_refused_by_stpu() -> None:
    _, model, sites, _ = made("stpu")
    with pytest.raises(DeployError, match="node 'a': found no range of its input, wanted ranges of input and output"):
        StpuLowering().lower(Program(model, (s for s in sites if s.name != "x")))
    with pytest.raises(DeployError, match="node 'c': found no range of its output, wanted ranges of input and output"):
        StpuLowering().lower(Program(model, (s for s in sites if s.name != "c")))


# together


def test_together_gives_the_files_of_all() -> None:
    _, model, sites, _ = made("tensorrt")
    both = Combined((QdqLowering(), TensorRtRanges())).lower(Program(model, sites))
    assert both == {**QdqLowering().lower(Program(model, sites)), **TensorRtRanges().lower(Program(model, sites))}
    with pytest.raises(DeployError) as caught:
        Combined((QdqLowering(), PplDspLowering(opset=21))).lower(Program(model, sites))
    assert str(caught.value) == (
        "Combined.lower, file 'model.onnx': found two files, by QdqLowering() and PplDspLowering(opset=21), wanted one "
        "file of each name. Deploy once with each lowering, set by edit.deploy."
    )


def test_together_takes_lowerings_of_one_opset() -> None:
    assert Combined((QdqLowering(), TensorRtRanges())).format.opset == 21
    assert Combined(QdqLowering(opset=13)) == Combined((QdqLowering(opset=13),))
    for wrong, message in (
        ((), "Combined.lowerings: found (), wanted at least one lowering. Write Combined((QdqLowering(), TensorRtRanges()))."),
        (
            (QdqLowering(opset=13), QdqLowering(opset=14)),
            "wanted one opset, because all lower the same model. Give all the same opset.",
        ),
        ((QdqLowering(), 3), "wanted a frozen value with the methods lower. Add lower."),
    ):
        with pytest.raises(SpecError) as caught:
            Combined(wrong)
        assert message in str(caught.value)
