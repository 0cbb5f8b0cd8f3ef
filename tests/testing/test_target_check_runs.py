"""check_target with a simulator that is a function: what the chip lacks is in float, and the user learns what that hides."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from hypothesis import strategies as st

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.lowering import QdqLowering
from qfunc.specs import Algorithm, DerivedQParams, Int, Kernel, Op, Rule, Runtime, Scale, Scheme, Shift, Target
from qfunc.targets.runtimes import OnnxRuntimeRunner
from qfunc.testing import Block, SmallNet, check_target

PLAIN, POOLED = (Block("conv", 3, 4, 3),), (Block("conv", 3, 4, 3), Block("mean"), Block("linear", 4, 5))


CODES = Scheme(Int(8), Scale(power_of_two=True))
MAC = Op(("conv", "linear"))
CHIP = Target(
    name="shifts",
    rules=(Rule(MAC, input=CODES, weight=CODES, bias=DerivedQParams(), output=CODES),),
    kernels=(Kernel(MAC, Shift("half_even")),),
    runtime=Runtime("ONNX Runtime, whose sums of powers of two are exact"),
    lowering=QdqLowering(),
    source="invented",
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)
"""A chip of convolutions and linear layers, on which a mean is in float."""


def networks(blocks: tuple[Block, ...]) -> list[tuple[SmallNet, torch.Tensor]]:
    return [(SmallNet(blocks), torch.randn((2, 3, 6, 6), generator=torch.Generator().manual_seed(0)))]


def run(artifact, inputs):
    return OnnxRuntimeRunner(optimise=False).run(artifact, inputs)


def test_ops_in_float_in_all_networks_are_a_warning() -> None:
    text = (
        "check_target(shifts): found ops in float in each network (flatten, global_avg_pool), beside which errors of "
        "one code are not seen at the outputs, wanted a network of the chip's integer ops. Give "
        "models= of them, or a runner with `inside`."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
        check_target(CHIP, run=run, models=st.sampled_from(networks(POOLED)), examples=1)


def test_one_network_on_integers_is_enough() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_target(CHIP, run=run, models=st.sampled_from([*networks(POOLED), *networks(PLAIN)]), examples=2)


def test_a_simulator_that_lacks_an_op_is_told_of_float_ops() -> None:
    def lacks(artifact, inputs):
        raise NotImplementedError("ReduceMean")

    place = f"{__file__}:{lacks.__code__.co_firstlineno + 1}"
    text = (
        f"check_target(shifts), law 'emulation_matches_the_runtime': the runner raised NotImplementedError: ReduceMean, at "
        f"{place}. The file has the ops that the target leaves in float, too: run them, or give models= of the chip's own "
        "ops.\n"
    )
    with pytest.raises(AssertionError, match=f"^{re.escape(text)}The model: "):
        check_target(CHIP, run=lacks, models=networks(POOLED))


def test_the_first_difference_is_shown_with_its_sum() -> None:
    """An accumulator of 16 bits: four products of the codes 122 are 59,536, of which the chip keeps -6,000."""

    def narrow(artifact, inputs):
        codes = (inputs[0].double() * 64 + 0.5).floor().clamp(-128, 127)
        wrapped = (122 * codes.sum(1, keepdim=True) + 2**15) % 2**16 - 2**15
        return [((wrapped / 512).round().clamp(-128, 127) / 8).float().numpy()]

    net = torch.nn.Conv2d(4, 1, 1, bias=False)
    torch.nn.init.constant_(net.weight, 1.9)
    text = (
        "check_target(shifts), law 'emulation_matches_the_runtime': emulation and runtime disagree: mismatch: 2 of 2 elements "
        "differ, first at output 0, by 128 LSB\n"
        "The first to differ: output 0, 2 of 2 elements, by 128 LSB\n"
        "Its first element: batch 0, [0, 0, 0, 0]: 14.5 emulated, -1.5 by the runtime\n"
        "There in the emulation: conv2d = 116, conv2d_acc = 59536; before rounding 116.28125\n"
        "All that differ: 2 of 2 codes, each by -128, no tie, at most 0.45 from midway; their accumulators are in [59536, "
        "61976]; no equal codes that are not clamped\n"
        "Its unit: conv2d, Kernel(Op(('conv', 'linear')), arithmetic=Shift('half_even'))\n"
        "  input_1: scale 0.015625, zero point 0, codes -128..127\n"
        "  weight: scale 0.015625, zero point 0, codes -128..127\n"
        "  output: scale 0.125, zero point 0, codes -128..127\n"
        "The model: "
    )
    with pytest.raises(AssertionError) as raised:
        check_target(CHIP, run=narrow, models=[(net.eval(), torch.full((1, 4, 1, 1), 1.9))])
    assert str(raised.value).startswith(text)


def test_a_target_without_a_runner_is_compared_with_nothing() -> None:
    text = (
        "check_target(shifts): found no runtime, so that the emulation is compared with nothing, wanted a chip or its "
        "simulator. Pass run=run, where run(artifact, inputs) -> outputs."
    )
    for models in (networks(PLAIN), st.sampled_from(networks(PLAIN))):
        with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
            check_target(CHIP, models=models, examples=1)
