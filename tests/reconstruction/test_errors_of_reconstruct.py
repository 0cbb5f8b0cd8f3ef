"""What reconstruct refuses, by whole messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import functions, targets
from qfunc.errors import CalibrationError, FileError, QfuncError, SpecError
from qfunc.reconstruction import Blocks, Fisher, Regulariser, mqbench
from qfunc.specs import edit
from tests.reconstruction.small_nets import Chain, calibrated, images

X = [images(4)]
NARROW = [x.bfloat16() for x in X]
ONE = qfunc.adaround(iterations=1)


DOREFA = edit.weights(function=functions.DoReFa())(targets.academic(4, 4))


class Twice(nn.Module):
    """No weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x


def net() -> Any:
    """A calibrated chain."""
    return calibrated(Chain(1), X)


def refused(kind: type[QfuncError], how: Any) -> str:
    """The message."""
    with pytest.raises(kind) as e:
        how()
    return str(e.value)


FIELDS = [
    ({"iterations": 0}, "Method.iterations: found 0, wanted an int in [1, inf]. Give such a number."),
    ({"batch": 2.0}, "Method.batch: found 2.0, wanted an int in [1, inf]. Give such a number."),
    ({"drop": 1.0}, "Method.drop: found 1.0, wanted a number in [0, 1). Give such a number."),
    ({"scale_lr": 0}, "Method.scale_lr: found 0, wanted a finite positive number or None. Give such a number."),
    ({"unit": "block"}, "Method.unit: found 'block', wanted Layers() or Blocks(). Give such a value."),
    ({"loss": Blocks}, "Method.loss: found <class 'qfunc.reconstruction.partition.Blocks'>, wanted SquaredError() or Fisher(). "
                       "Give such a value."),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), FIELDS, ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_fields_that_mean_nothing(fields: dict[str, Any], message: str) -> None:
    assert refused(SpecError, lambda: qfunc.qdrop(**fields)) == message
    damping = "Fisher.damping: found -1, wanted a number of at least 0. Use 0.0 for the gradients alone."
    assert refused(SpecError, lambda: Fisher(-1)) == damping
    share = "Regulariser.warm_up: found 1, wanted a number in [0, 1). Give the share of iterations without the regulariser."
    assert refused(SpecError, lambda: Regulariser(warm_up=1)) == share
    with pytest.raises(TypeError, match="max_count"):
        qfunc.qdrop(max_count=1)  # type: ignore[call-arg]


def test_mqbenchs_keys_and_an_unknown_pattern() -> None:
    made = mqbench("block", max_count=5, scale_lr=1e-4, weight=0.1, warm_up=0.1, b_range=(10, 3), prob=0.5, batch=100)
    assert made == qfunc.qdrop(iterations=5, scale_lr=1e-4, regulariser=Regulariser(0.1, 10, 3, 0.1), batch=100)
    assert refused(SpecError, lambda: mqbench("row")) == (
        "Method.unit: found 'row', wanted Layers() or Blocks(). Give such a value."
    )


USES = [
    (lambda: qfunc.reconstruct(qfunc.adaround, X),
     "reconstruct: found the function adaround, wanted a method. Call it: qfunc.adaround()."),
    (lambda: qfunc.reconstruct("adaround", X),
     "reconstruct: found 'adaround', wanted a method. Write qfunc.reconstruct(qfunc.adaround(), batches)(model)."),
    (lambda: qfunc.reconstruct(ONE, X, memory=-1),
     "reconstruct, memory: found -1, wanted a number of bytes. Write memory=4 << 30."),
    (lambda: qfunc.reconstruct(ONE, X, parts=(1, 0)),
     "reconstruct, parts: found (1, 0), wanted the numbers of batches of the parts, positive integers, or None. Write "
     "parts=(4, 4)."),
    (lambda: qfunc.reconstruct(ONE, X, parts=2),
     "reconstruct, parts: found 2, wanted the numbers of batches of the parts, positive integers, or None. Write "
     "parts=(4, 4)."),
    (lambda: qfunc.reconstruct(ONE, X, parts=(1, 1))(net()),
     "reconstruct, parts: found 1 batch, wanted 2, the sum of (1, 1). Give the number of batches of each part."),
    (lambda: qfunc.reconstruct(ONE, [])(net()),
     "reconstruct: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
    (lambda: qfunc.reconstruct(ONE, [X[0][:2]])(net()),
     "reconstruct, batches: found 2 images, wanted at least 3. Pass images as for calibration; the papers use 1,024."),
    (lambda: qfunc.reconstruct(ONE, [X[0], X[0][..., 1:]])(net()),
     "reconstruct, input 'x': found torch.float32 of shape (3, 6, 7) an image and torch.float32 of shape (3, 6, 6) an image, "
     "wanted batches that differ only in the number of images. Give images, or padded sequences, of one size."),
    (lambda: qfunc.reconstruct(ONE, X)(qfunc.quantize(targets.academic(4, 4))(Chain(1))),
     "reconstruct: found a quantized model without qparams at site 'x', wanted a calibrated model. "
     "First run qfunc.calibrate(batches)(quantized)."),
    (lambda: qfunc.reconstruct(ONE, X, select=edit.name("tail"))(net()),
     "reconstruct, select: found Name('tail'), which matches no op whose weight is rounded, wanted a selector of such ops. "
     "They are: body.0, head."),
    (lambda: qfunc.reconstruct(ONE, X)(calibrated(Twice(), X, targets.onnxruntime)),
     "reconstruct: found no weight in integers that a conv, linear, matmul or recurrent op reads, wanted at least one. "
     "Quantize for a target that quantizes weights."),
    (lambda: qfunc.reconstruct(ONE, X)(calibrated(Chain(1), X, DOREFA)),
     "reconstruct, site 'body.0.weight': found the function DoReFa(largest=1.0), wanted a function that AdaRound can wrap: a "
     "function that quantizes x itself. Use edit.weights(function=Fixed()) first, or exclude the op with select=."),
    (lambda: qfunc.reconstruct(ONE, NARROW)(calibrated(Chain(1).bfloat16(), NARROW)),
     "reconstruct: found the parameter 'body.0.weight' in torch.bfloat16, wanted a model in float32. Quantize model.float(), "
     "and calibrate it."),
    (lambda: qfunc.gptq(NARROW)(calibrated(Chain(1).bfloat16(), NARROW)),
     "gptq: found the parameter 'body.0.weight' in torch.bfloat16, wanted a model in float32. Quantize model.float(), "
     "and calibrate it."),
]  # fmt: skip


@pytest.mark.parametrize(("how", "message"), USES, ids=range(len(USES)))
def test_wrong_uses(how: Any, message: str) -> None:
    assert refused(QfuncError, how) == message


def test_images_that_are_not_apart() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x)
            return self.two(y - y.mean(0, keepdim=True))

    x = [torch.randn(8, 3)]
    assert refused(CalibrationError, lambda: qfunc.reconstruct(ONE, x)(calibrated(Centred(), x))) == (
        "reconstruct, tensor 'sub': found a value without a batch axis, wanted a batch axis in every tensor between units. "
        "Name a module around it with Blocks(modules=...), or exclude the ops before it with select=."
    )


def test_a_unit_that_mixes_the_images_of_a_batch_has_one_part() -> None:
    """The gradient of a batch is no sum over its parts then; in one part the block is reconstructed."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x)
            return self.two(y + 0.0 * y.mean(0, keepdim=True))

    x = [torch.randn(4, 3), torch.randn(4, 3)]
    method = qfunc.brecq(iterations=1, unit=Blocks(modules=("0",)))
    model = calibrated(nn.Sequential(Centred()), x)
    assert qfunc.reconstruct(method, x, progress=False)(model)(x[0]).shape == (4, 2)
    assert refused(CalibrationError, lambda: qfunc.reconstruct(method, x, parts=(1, 1))(model)) == (
        "reconstruct, tensor '_0_mean': found a value without a batch axis inside a unit, wanted a batch axis in every tensor, "
        "in several parts or processes. Call reconstruct in one process without parts=, or exclude the ops around it with "
        "select=."
    )


class Loop(nn.Module):
    """It counts its images when it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.one(x[i]) for i in range(x.shape[0])])


def test_a_program_of_one_number_of_images() -> None:
    """Units are made in batches of their own: told before anything runs, whatever the number."""
    target, x = targets.academic(4, 4), torch.randn(4, 3)
    wanted = "wanted a model that accepts any batch size. "
    dynamic = (
        "Export it with dynamic_shapes, such as {'x': {0: torch.export.Dim.AUTO}}, and an example of two; or quantize the "
        "nn.Module itself."
    )
    fixed = torch.export.export(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (x,))
    ran: list[Tensor] = []

    def batches() -> Any:
        ran.append(x)
        yield x

    def reconstructed(model: Any, **how: Any) -> Any:
        calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target, **how)(model))
        return lambda: qfunc.reconstruct(qfunc.adaround(iterations=1, batch=4), batches())(calibrated)

    found = "found 4 on the first axis, to which torch.export fixed it, "
    assert refused(CalibrationError, reconstructed(fixed)) == f"reconstruct, input 'input': {found}{wanted}{dynamic}"
    at = reconstructed(nn.Sequential(fixed.module()), submodules="0")  # type: ignore[arg-type]
    assert refused(CalibrationError, at) == f"reconstruct, submodule '0', input 'input': {found}{wanted}{dynamic}"
    assert refused(CalibrationError, reconstructed(Loop(), example_inputs=(x,))) == (
        f"reconstruct: {found}{wanted}Quantize the submodules that accept any batch size: quantize(target, submodules=...)."
    )
    assert not ran
    varies = torch.export.export(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    assert reconstructed(varies)()(x).shape == (4, 4)


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    model = net()
    qfunc.reconstruct(ONE, X, resume=tmp_path / "units")(model)
    where = f"reconstruct, resume={str(tmp_path / 'units')!r}: found"
    other = "wanted the units of this {}. Use another directory."
    for how, word in (
        (lambda: qfunc.reconstruct(qfunc.adaround(iterations=2), X, resume=tmp_path / "units")(model), "method"),
        (lambda: qfunc.reconstruct(ONE, [images(5)], resume=tmp_path / "units")(model), "set of images"),
        (lambda: qfunc.reconstruct(ONE, X, resume=tmp_path / "units")(calibrated(Chain(1), X, seed=1)), "model"),
    ):
        assert refused(CalibrationError, how) == f"{where} units of another {word}, {other.format(word)}"
    (tmp_path / "units" / "unit-0000.safetensors").write_bytes(b"cut")
    message = refused(FileError, lambda: qfunc.reconstruct(ONE, X, resume=tmp_path / "units")(model))
    assert message == (
        f"{tmp_path / 'units' / 'unit-0000.safetensors'}: found 3 bytes, wanted a header and its tensors. "
        "Delete that file; its unit is then reconstructed again."
    )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    assert refused(CalibrationError, lambda: qfunc.reconstruct(ONE, X, resume=tmp_path / "notes")(model)) == (
        f"reconstruct, resume={str(tmp_path / 'notes')!r}: found other files (a.txt), wanted an empty directory, or one "
        "written with resume=. Use another directory."
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["adaround", "brecq", "qdrop"])
def test_images_that_are_not_finite(name: str, value: float) -> None:
    batches = [images(4), images(4)]
    batches[1][0, 0, 0, 0] = value
    transform = qfunc.reconstruct(getattr(qfunc, name)(iterations=1), batches, progress=False)
    assert refused(CalibrationError, lambda: transform(net())) == (
        f"reconstruct, unit 'body.0': found a loss of {value}, wanted a finite loss. Remove batches with NaN or infinite "
        "values, or repair the weights."
    )
