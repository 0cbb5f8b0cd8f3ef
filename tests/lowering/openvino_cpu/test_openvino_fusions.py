"""What OpenVINO fuses into convolutions: no quantizer stands inside, and its codes are the emulation's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import VerifyError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.targets.runtimes import OpenVinoRunner
from tests.conformance.modules import Apply
from tests.lowering.openvino_cpu.test_openvino_lowering import NARROW, needs_openvino


class Block(nn.Module):
    """Convolutions around an addition, told apart by `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.kind = kind
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.side, self.end = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        """[N, 3, H, W] -> [N, 4, H - 2, W - 2]."""
        x = torch.relu(self.a(x))
        side = self.side(x) if self.kind == "side first" else None
        y = self.c(torch.relu(self.b(x)))
        match self.kind:
            case "identity":
                return self.end(torch.relu(y + x))
            case "no relu":
                return self.end(x + y)
            case "side first":
                return self.end(torch.relu(y + side))
            case "side last":
                return self.end(torch.relu(y + self.side(x)))
            case "relu6 before":
                return self.end(nn.functional.relu6(y) + x)
            case "relu before both":
                return self.end(torch.relu(y) + torch.relu(self.side(x)))
            case "broadcast":
                return self.end(y + torch.relu(self.side(x.mean((2, 3), keepdim=True))))
            case "two readers":
                return self.end(torch.relu(y + x)), self.end(y)
            case "no convolution":
                return self.end(nn.functional.avg_pool2d(x, 3, 1, 1) + nn.functional.max_pool2d(x, 3, 1, 1))
        raise AssertionError(self.kind)


BLOCKS = {
    # kind: (tensors that are quantized between the first relu and the last convolution, which layer has the addition)
    "identity": ({"relu_1", "relu_2"}, "c"),
    "no relu": ({"relu_1", "add"}, "c"),
    "side first": ({"side", "relu_1", "relu_2"}, "c"),
    "side last": ({"relu_1", "c", "relu_2"}, "side"),
    "relu6 before": ({"relu_1", "add"}, "c"),
    "relu before both": ({"relu_1", "relu_2", "add"}, "side"),
    "broadcast": ({"relu_1", "c", "mean", "add"}, None),
    "two readers": ({"relu_1", "c", "relu_2"}, None),
    "no convolution": ({"avg_pool2d", "add"}, None),
}


def calibrated(kind: str) -> Any:
    torch.manual_seed(18)
    return qfunc.calibrate([torch.randn(2, 3, 10, 9)], progress=False)(qfunc.quantize(NARROW)(Block(kind)))


@pytest.mark.parametrize("kind", BLOCKS)
def test_no_quantizer_stands_between_a_convolution_and_its_addition(kind: str) -> None:
    found = {s.tensor for s in quantizer_nodes(calibrated(kind)) if s.module.site.slot not in ("weight", "bias")}
    assert found - {"x", "relu"} == BLOCKS[kind][0]


@needs_openvino
@pytest.mark.parametrize("kind", BLOCKS)
def test_openvino_fuses_what_the_target_says_and_computes_its_codes(kind: str) -> None:
    done = calibrated(kind)
    compiled = OpenVinoRunner().compiled(qfunc.deploy(NARROW)(done).files["model.onnx"])
    infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
    layers = {i["originalLayersNames"].value: i["layerType"].value for i in infos}
    (name,) = (n for n in layers if "add" in n.split(","))
    wanted = BLOCKS[kind][1]
    # Of two convolutions the one is fused that has no quantizer; an addition that broadcasts is an op of its own.
    assert layers[name] == ("Eltwise" if wanted is None else "Convolution")
    assert wanted is None or wanted in name.split(",")
    report = qfunc.verify(NARROW)(done, [torch.randn(16, 3, 10, 9)])
    assert report.disagreements == ()
    assert report.runtime == "OpenVinoRunner()"
    assert {r.name for r in report.of("codes")} >= BLOCKS[kind][0] | {"x", "relu"}
    # Its float32 sums have an order of their own: a tie may fall the other way, by one code, in a unit given its own inputs.
    alone = [r for r in report.of("alone") or report.of("codes") if not r.name.startswith("output")]
    assert max(r.largest_lsb for r in alone) <= 1
    assert sum(r.mismatches for r in alone) <= report.elements / 1000


def test_the_addition_is_in_real_units_without_rounding_before_it() -> None:
    """relu(x w + b + y) in float32 from the codes of x and y, by hand, with one rounding at the end."""
    done = calibrated("identity")
    codes: dict[str, Any] = {}
    x = torch.randn(4, 3, 10, 9)
    ObservingInterpreter(qfunc.emulate(NARROW)(done), codes.__setitem__).run(x)
    scale = {
        c.quantizer.tensor: np.float32(c.scale)
        for c in Partition(QuantizedModel(done), NARROW).at_path.values()
        if c.qparams.scale.ndim == 0
    }
    weight = next(s.module for s in quantizer_nodes(done) if s.tensor == "c.weight" or s.module.site.name == "c.weight")
    block = Block("identity")
    held, qparams = weight.export(block.c.weight.detach())
    s_w = qparams.scale.numpy().reshape(1, -1, 1, 1)
    acc = np.einsum("oi,nihw->nohw", held.numpy()[:, :, 0, 0], codes["relu_1"].numpy()).astype(np.float32)
    real = acc * np.float32(np.float64(scale["relu_1"]) * s_w.astype(np.float64)) + block.c.bias.detach().numpy().reshape(
        1, -1, 1, 1
    )
    total = real + codes["relu"].numpy() * scale["relu"]
    wanted = np.clip(np.rint(total / scale["relu_2"]), 0, 255)
    assert np.array_equal(codes["relu_2"].numpy(), wanted)
    rounded = np.rint(real / scale["relu_2"]) * scale["relu_2"] + codes["relu"].numpy() * scale["relu"]
    assert (np.clip(np.rint(rounded / scale["relu_2"]), 0, 255) != wanted).mean() > 0.1


def test_without_openvino_the_runner_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = calibrated("identity")
    with pytest.raises(VerifyError) as e:
        qfunc.verify(NARROW)(done, [torch.randn(2, 3, 10, 9)])
    assert str(e.value) == (
        "OpenVinoRunner: found the package openvino is not installed, wanted openvino 2026.4 or later. "
        "Install qfunc-torch[openvino], or pass runtime=run, where run(artifact, inputs) -> outputs."
    )


FACTORS = {
    "clipped": lambda x, a, b: b((a(x) * 0.31).clamp(-0.37, 0.53)),
    "output": lambda x, a, b: (a(x) * 0.31).clamp(-0.37, 0.53),
    "input": lambda x, a, b: b((x * 0.31).clamp(-0.37, 0.53)),
    "product": lambda x, a, b: ((a(x) @ a(x).transpose(2, 3)) * 0.29).clamp(-0.37, 0.53),
    "two factors": lambda x, a, b: ((a(x) * 0.5) * 0.7).clamp(-0.11, 0.23),
    "attention to one": lambda x, a, b: torch.softmax(x[:, :, :1] @ x[:, :, :1].transpose(2, 3) * 0.29, -1) @ x[:, :, :1],
}


@needs_openvino
@pytest.mark.parametrize("form", FACTORS)
def test_codes_times_a_number_are_not_clipped_to_codes(form: str) -> None:
    """OpenVINO moves the factor after the clip, whose bounds it rounds to codes."""
    torch.manual_seed(0)
    net = Apply(FACTORS[form], nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)).eval()
    batches = [torch.randn(2, 4, 6, 6) for _ in range(2)]
    report = qfunc.verify(targets.openvino)(
        qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.openvino)(net)), batches
    )
    assert "mismatch" not in report.verdict, report
