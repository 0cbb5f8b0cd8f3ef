"""K210: every code of the emulation is that of a KPU in plain integers, which reads the tables of the artifact."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, EmulationError, SpecError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.specs import ScaleStage, SegmentStage, edit
from qfunc.testing import check_target
from tests.targets import kpu


def chain(seed: int, *layers: nn.Module) -> nn.Module:
    """A network with random weights."""
    net, generator = nn.Sequential(*layers).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(-1, 1, generator=generator)
    return net


def calibrated(net: nn.Module, x: Tensor, target: Any = targets.k210) -> Any:
    """The network on the chip."""
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))


def pixels(seed: int, *shape: int) -> Tensor:
    """A random image."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 4 - 1.5


NETS = {
    "clamps, pools and a linear layer": (
        lambda: chain(
            0, nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 4, 3, 2, groups=4), nn.ReLU6(),
            nn.Conv2d(4, 5, 1), nn.MaxPool2d(2), nn.Conv2d(5, 3, 3, padding=2, bias=False), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(3, 2),
        ),
        (1, 3, 36, 38),
    ),
    "a clamp inside of the codes": (
        lambda: chain(1, nn.Conv2d(2, 3, 3, padding=1), nn.Hardtanh(-0.25, 0.5), nn.Conv2d(3, 2, 1)),
        (2, 2, 6, 5),
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETS)
def test_the_chip_keeps_the_laws_of_targets(name: str) -> None:
    make, shape = NETS[name]
    check_target(targets.k210, run=kpu.run, models=[(make(), pixels(7, *shape))])


LAYERS = st.tuples(
    st.sampled_from(((1, 0, 1), (1, 1, 2), (3, 0, 1), (3, 1, 1), (3, 1, 2), (3, 2, 1))),  # window, padding, stride
    st.booleans(),  # depthwise
    st.sampled_from((nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.3, 0.7))),
    st.booleans(),  # a bias
    st.floats(-9, 3),  # log2 of the size of the weights
    st.integers(0, 10**6),
)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(LAYERS)
def test_each_layer_is_that_of_the_simulator(layer: Any) -> None:
    (window, padding, stride), depthwise, act, bias, size, seed = layer
    conv = nn.Conv2d(3, 3, window, stride, padding, groups=3 if depthwise else 1, bias=bias)
    net, x = chain(seed, conv, act), pixels(seed, 1, 3, 6, 5)
    with torch.no_grad():
        conv.weight.mul_(2.0**size)
    model = calibrated(net, x)
    wild = torch.cat([x, x * 3])  # beyond the calibrated range, so that codes saturate
    emulated = qfunc.emulate(targets.k210)(model)(wild)
    chip = kpu.run(qfunc.deploy(targets.k210)(model), [wild])[0]
    assert torch.equal(emulated, torch.tensor(chip))


def test_ties_go_to_even_steps_from_the_start_of_the_segment() -> None:
    """A table starts at the lowest code, so that the parity of a tie is not that of the code."""
    net = chain(0, nn.Conv2d(1, 1, 1, bias=False))
    with torch.no_grad():
        net[0].weight.fill_(127 / 128)
    x = torch.arange(-96.0, 160.0).reshape(1, 1, 16, 16)
    model = calibrated(net, x)
    quantizer = model.get_submodule("quantizers.0.output")
    quantizer.scale.fill_(1 / 64)  # half of an odd sum of 1/128 is a tie
    quantizer.zero_point.fill_(97)
    emulated = qfunc.emulate(targets.k210)(model)(x)
    assert torch.equal(emulated, torch.tensor(kpu.run(qfunc.deploy(targets.k210)(model), [x])[0]))


def test_the_tables_start_at_the_lowest_code() -> None:
    net = chain(5, nn.Conv2d(1, 1, 1, bias=False), nn.Hardtanh(-0.75, 1.0))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
    model = calibrated(net, torch.linspace(-2, 2, 64).reshape(1, 1, 8, 8))
    output = model.get_submodule("quantizers.1.output")
    output.scale.fill_(0.25)
    output.zero_point.fill_(6)
    (layer,) = json.loads(qfunc.deploy(targets.k210)(model).files["kpu.json"])["layers"].values()
    first, second, third = layer["activation"][:3]
    k = third[0].bit_length() - 3  # s_v = s_y 2^-k
    assert first == [-(2**35), 0, 0, 3]  # -0.75 / 0.25 + 6
    assert second == [-3 << k, 2 ** (second[2] - k), second[2], 3]
    assert third == [4 << k, 0, 0, 10]  # 1 / 0.25 + 6
    assert layer["activation"][3:] == [third] * 13


def test_inputs_round_after_their_zero_point_is_added() -> None:
    """lrintf(x / s + z): with an odd z, halves go to other codes than z + lrintf(x / s)."""
    net = chain(0, nn.Conv2d(1, 1, 1, bias=False))
    x = torch.arange(-8, 8).reshape(1, 1, 4, 4) / 4
    model = calibrated(net, x)
    given = model.get_submodule("quantizers.input.output")
    given.scale.fill_(0.5)
    given.zero_point.fill_(9)
    found = ObservingInterpreter(qfunc.emulate(targets.k210)(model), (codes := {}).__setitem__).run(x)
    assert codes["input_1_codes"].flatten().tolist() == [float(round(v / 0.5 + 9)) for v in x.flatten().tolist()]
    assert torch.equal(found, torch.tensor(kpu.run(qfunc.deploy(targets.k210)(model), [x])[0]))


def test_the_tables_have_the_widths_of_the_registers() -> None:
    model = calibrated(chain(3, nn.Conv2d(2, 3, 3), nn.ReLU()), pixels(1, 1, 2, 6, 6))
    files = qfunc.deploy(targets.k210)(model).files
    assert sorted(files) == ["kpu.bin", "kpu.json", "model.onnx", "qfunc.json"]
    (layer,) = json.loads(files["kpu.json"])["layers"].values()
    assert (layer["arg_x"], layer["shift_x"], layer["shift_w"]) == (-128, 0, 0)
    assert layer["arg_w"] == -layer["pad_value"]
    assert layer["arg_add"] == 9 * 128 * layer["pad_value"]
    assert len(layer["activation"]) == 16
    assert len(files["kpu.bin"]) == 3 * 2 * 9
    assert all(2**20 <= abs(mul) < 2**21 or shift == 15 for mul, shift, _ in layer["batch_norm"])


@pytest.mark.parametrize(
    ("net", "shape", "found", "wanted"),
    [
        (lambda: nn.Conv2d(1025, 1, 1), (1, 1025, 4, 4), "sizes [1, 1025, 4, 4] of its input 'input'",
         "at most 1024 along axis 1"),
        (lambda: nn.Conv2d(1, 1, 1), (1, 1, 3, 8), "sizes [1, 1, 3, 8] of its input 'input'", "4 to 256 along axis 2"),
        (lambda: nn.Conv2d(1, 1, 3), (1, 1, 8, 513), "sizes [1, 1, 8, 513] of its input 'input'", "4 to 512 along axis 3"),
        (lambda: nn.Conv2d(1, 1, 1), (1, 8, 8), "sizes [1, 8, 8] of its input 'input'", "4 axes"),
    ],
)  # fmt: skip
def test_sizes_that_the_kpu_does_not_take(net: Any, shape: Any, found: str, wanted: str) -> None:
    x, source = torch.randn(shape), targets.k210.legality[2].because
    message = f"target 'k210', op 'conv2d': found {found}, wanted {wanted}: {source}. Leave it to the CPU by edit.skip."
    with pytest.raises(SpecError) as e:
        qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.k210)(net()))
    assert str(e.value) == message
    with pytest.raises(SpecError) as e:
        qfunc.quantize(targets.k210, (x,))(net())
    assert str(e.value) == message
    skipped = edit.pipe(targets.k210, edit.skip(edit.op("conv")))
    qfunc.calibrate([x], progress=False)(qfunc.quantize(skipped)(nn.Sequential(net(), nn.Conv2d(1, 1, 5, padding=2))))


def test_what_the_kpu_lacks_runs_on_the_cpu() -> None:
    net = chain(0, nn.Conv2d(2, 2, 5, padding=2), nn.Conv2d(2, 2, 3, dilation=2), nn.Conv2d(2, 2, 3), nn.Sigmoid())
    report = qfunc.explain(calibrated(net, pixels(0, 1, 2, 12, 12)))
    assert [row.op for row in report.floats] == ["0", "1", "3"]
    assert {row.op for row in report.sites} == {"2"}


def test_several_outputs_for_a_channel_have_no_layer() -> None:
    model = calibrated(chain(0, nn.Conv2d(2, 4, 3, groups=2)), pixels(0, 1, 2, 6, 6))
    with pytest.raises(DeployError) as e:
        qfunc.deploy(targets.k210)(model)
    assert str(e.value) == (
        "op '0': found a window of [3, 3] with 2 groups, dilations [1, 1] and 4 outputs, wanted a window of [1, 1] or [3, 3] "
        "without dilation, in one group or with one output for each channel. Leave it to the CPU by edit.skip."
    )


def test_sums_that_no_table_takes() -> None:
    model = calibrated(chain(0, nn.Conv2d(2, 2, 1, bias=False)), pixels(0, 1, 2, 6, 6))
    model.get_submodule("quantizers.0.output").scale.fill_(1e-12)
    with pytest.raises(
        EmulationError, match=r"^unit '0': found sums up to .* wanted at most 2\^35 steps, and a multiplier of 22"
    ):
        qfunc.emulate(targets.k210)(model)
    with pytest.raises(DeployError, match=r"^op '0': found s_x s_w / s_y up to .*, wanted sums and multipliers that fit"):
        qfunc.deploy(targets.k210)(model)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ScaleStage("floor", 22, shift=15, addend=32, value=24),
            "ScaleStage.value: found 24, wanted at least the 32 bits of the addend. Give a wider value.",
        ),
        (
            lambda: SegmentStage("half_even", shift=44),
            "SegmentStage.shift: found 44, wanted an int in [0, 43]. Give such a number.",
        ),
    ],
)  # fmt: skip
def test_stages_that_no_chip_has(make: Any, message: str) -> None:
    with pytest.raises(SpecError) as e:
        make()
    assert str(e.value) == message
