"""Weights that are saved as codes: their sizes, what the loaded model computes, and which weights stay floats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, EmulationError, SpecError
from qfunc.files.bit_planes import pack, unpack
from qfunc.functions import AdaRound, DoReFa, Lsq
from qfunc.proof.saved_check import check_saved
from qfunc.specs import Int, Target, edit
from qfunc.specs.formats import MATMUL_4BITS, MATMUL_4BITS_AFFINE
from tests.transforms.checks import arguments, calibrated, equal, same_state, state
from tests.transforms.nets import NAMES


def planes_of(codes: list[int], bits: int) -> list[list[int]]:
    """The planes by Python's integers: the binary digits of all codes as one number for each plane."""
    size = -(-len(codes) // 8)
    numbers = [sum((c >> k & 1) << i for i, c in enumerate(codes)) for k in range(bits)]
    return [list(n.to_bytes(size, "little")) for n in numbers]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_planes_of_bits(bits: int, count: int) -> None:
    codes = np.random.default_rng(count).integers(0, 1 << bits, count).astype(np.uint8)
    assert pack(codes, bits).tolist() == planes_of(codes.tolist(), bits)
    assert np.array_equal(unpack(pack(codes, bits), count), codes)


def layers() -> nn.Module:
    """Layers that every target takes, with widths that blocks divide."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)).eval()


def images() -> nn.Module:
    """A convolutional network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU())
    return nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


def every_target() -> list[Target]:
    """All targets, and the engines of blocks at all their widths."""
    engines = [targets.gguf(k) for k in ("Q4_0", "Q5_0", "Q8_0")] + [targets.executorch_8da4w(32)]
    engines += [targets.onnxruntime_nbits(b, 32, level, s) for b, level, s in (
        (2, 4, MATMUL_4BITS), (4, 4, MATMUL_4BITS), (4, 0, MATMUL_4BITS_AFFINE), (8, 4, MATMUL_4BITS))]  # fmt: skip
    engines += [targets.compressed_tensors("W4A16", 32), targets.openvino_blocks(4, 32)]
    names = {*targets.__all__} - {"compressed_tensors", "executorch_8da4w", "gguf", "onnxruntime_nbits", "openvino_blocks"}
    chips = [getattr(targets, n) for n in sorted(names)]
    return engines + [c if isinstance(c, Target) else c(8, 8) if c.__name__.endswith("nlp") else c(4, 4) for c in chips]


def emulated(target: Target, model: fx.GraphModule, x: torch.Tensor) -> Any:
    """The emulation's outputs; the reason if the arithmetic is not public."""
    try:
        return qfunc.emulate(target)(model)(x)
    except EmulationError as e:
        return torch.zeros(len(e.found))


@pytest.mark.thorough
@pytest.mark.parametrize("target", every_target(), ids=lambda t: t.name)
def test_the_loaded_model_computes_and_deploys_the_same_bytes(target: Target, tmp_path: Path) -> None:
    blocks = any(word in target.name for word in ("compressed", "gguf", "_block", "8da4w"))
    build, shape = (layers, (4, 64)) if blocks else (images, (2, 3, 9, 9))
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    done = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(build()))
    place = qfunc.save(tmp_path / "saved")(done)
    again = qfunc.load(place)(build())
    assert torch.equal(again(batch), done(batch))
    assert equal(emulated(target, again, batch), emulated(target, done, batch))
    if target.lowering is not None:
        assert qfunc.deploy(target)(again).files == qfunc.deploy(target)(done).files
    coded = json.loads((place / "qfunc.json").read_text()).get("codes", {})
    narrow = [
        q
        for n, q in done.named_modules()
        if n.endswith(("weight", "bias")) and isinstance(f := q.scheme.format, Int) and f.bits <= 8
    ]
    assert len(coded) == len(narrow)
    assert qfunc.save(tmp_path / "again")(again)
    assert all((place / n).read_bytes() == (tmp_path / "again" / n).read_bytes() for n in ("model.safetensors", "qfunc.json"))
    assert check_saved(place).good


@pytest.mark.parametrize("name", NAMES)
def test_networks_loaded_from_codes(name: str, tmp_path: Path) -> None:
    model, batch, done = calibrated(name)
    again = qfunc.load(qfunc.save(tmp_path / "saved")(done))(model)
    assert equal(again(*arguments(batch)), done(*arguments(batch)))
    assert qfunc.deploy(targets.onnxruntime)(again).files == qfunc.deploy(targets.onnxruntime)(done).files


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_a_weight_takes_its_bits_alone(bits: int, tmp_path: Path) -> None:
    target = edit.pipe(targets.qdq, edit.weights(bits=bits))
    model = nn.Sequential(nn.Linear(64, 128, bias=False)).eval()
    done = qfunc.calibrate([torch.randn(2, 64)], progress=False)(qfunc.quantize(target)(model))
    stored = load_file(qfunc.save(tmp_path / "saved")(done) / "model.safetensors")
    assert stored["0.weight"].dtype == torch.uint8
    assert stored["0.weight"].numel() == 64 * 128 * bits // 8


def kept_as_floats(target: Target, model: nn.Module, tmp_path: Path, train: bool = False) -> list[str]:
    """The names of the floating-point tensors with more than one axis in the file of a model."""
    batch = torch.randn(2, 64)
    done = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(model)).train(train)
    stored = load_file(qfunc.save(tmp_path)(done) / "model.safetensors")
    again = qfunc.load(tmp_path)(model)
    assert same_state(state(again), state(done)) or "0.weight" not in stored or stored["0.weight"].dtype == torch.uint8
    assert torch.equal(again.eval()(batch), done.eval()(batch))
    return [n for n, t in stored.items() if t.is_floating_point() and t.ndim > 1 and not n.startswith("quantizers")]


def one_layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64)).eval()


def test_weights_that_codes_do_not_determine_stay_floats(tmp_path: Path) -> None:
    """A learned rounding depends on the float weight, DoReFa stretches by its maximum, and training goes on from floats."""
    functions = {"adaround": AdaRound(), "dorefa": DoReFa(), "lsq": Lsq()}
    found = {n: kept_as_floats(edit.weights(function=f)(targets.qdq), one_layer(), tmp_path / n) for n, f in functions.items()}
    assert found["lsq"] == []
    assert found["adaround"] == ["0.weight"]
    assert kept_as_floats(targets.qdq, one_layer(), tmp_path / "trains", train=True) == ["0.weight"]


def test_a_tied_table_stays_float(tmp_path: Path) -> None:
    """The embedding reads it in float."""
    model, batch, done = calibrated("tokens")
    tied = [
        n
        for n, t in load_file(qfunc.save(tmp_path)(done) / "model.safetensors").items()
        if t.is_floating_point() and t.ndim > 1
    ]
    again = qfunc.load(tmp_path)(model)
    assert equal(again(*arguments(batch)), done(*arguments(batch)))
    assert all(torch.equal(again.state_dict()[n], done.state_dict()[n]) for n in tied)


def test_an_uncalibrated_model_keeps_its_floats(tmp_path: Path) -> None:
    """The float network is calibrated later."""
    made = qfunc.quantize(targets.qdq)(one_layer())
    again = qfunc.load(qfunc.save(tmp_path)(made))(one_layer())
    assert same_state(state(again), state(made))


def test_files_without_codes_are_read(tmp_path: Path) -> None:
    """Those of earlier checkouts have no field "codes"; `FloatWeights` writes the same."""
    model, _, done = calibrated("residual")
    place = qfunc.save(tmp_path, qfunc.FloatWeights())(done)
    assert "codes" not in json.loads((place / "qfunc.json").read_text())
    assert same_state(state(qfunc.load(place)(model)), state(done))


AGAIN = "Write the file again: it is damaged, or another program changed it."


def damaged(tmp_path: Path, change: Any) -> str:
    """The message of `load` for a report that is changed."""
    place = qfunc.save(tmp_path)(qfunc.calibrate([torch.ones(1, 64)], progress=False)(qfunc.quantize(targets.qdq)(one_layer())))
    report = json.loads((place / "qfunc.json").read_text())
    change(report)
    (place / "qfunc.json").write_text(json.dumps(report))
    with pytest.raises(qfunc.errors.QfuncError) as e:
        qfunc.load(place)(one_layer())
    return str(e.value)


def test_reports_that_do_not_fit_the_tensors(tmp_path: Path) -> None:
    file = f"{tmp_path}/model.safetensors"
    found = damaged(tmp_path, lambda r: r["codes"]["0.weight"].update(bits=4))
    assert found == (
        f"{file}: ['0.weight']: found torch.uint8 of shape (8, 512), wanted torch.uint8 of shape (4, 512), "
        f"as 4-bit codes need. {AGAIN}"
    )
    found = damaged(tmp_path, lambda r: r["codes"].update(x=r["codes"]["0.weight"]))
    assert found == f"{file}: ['x']: found no such tensor, wanted torch.uint8 of shape (8, 512), as 8-bit codes need. {AGAIN}"
    found = damaged(tmp_path, lambda r: r["codes"].clear())
    assert found.startswith(f"load('{tmp_path}'): found tensors that differ from the saved ones: 0.weight, wanted the saved")
    found = damaged(tmp_path, lambda r: r["codes"]["0.weight"].update(shape=[4096]))
    assert found.startswith(f"load('{tmp_path}'): found tensors that differ from the saved ones: 0.weight, wanted the saved")


def test_codes_beyond_the_highest(tmp_path: Path) -> None:
    target = edit.weights(bits=4)(targets.qdq)  # -7 to 7
    done = qfunc.calibrate([torch.ones(1, 64)], progress=False)(qfunc.quantize(target)(one_layer()))
    place = qfunc.save(tmp_path)(done)
    content = (place / "model.safetensors").read_bytes()
    tensor = load_file(place / "model.safetensors")["0.weight"]
    start = content.index(bytes(tensor.numpy().tobytes()))
    size = tensor.shape[1]
    changed = bytearray(content)
    for plane in range(4):
        changed[start + plane * size] |= 1
    (place / "model.safetensors").write_bytes(bytes(changed))
    with pytest.raises(qfunc.errors.FileError) as e:
        qfunc.load(place)(one_layer())
    assert str(e.value) == f"{place}/model.safetensors: ['0.weight']: found the code 8, wanted at most 7. {AGAIN}"


def test_codes_that_no_quantizer_reads(tmp_path: Path) -> None:
    """A model that is saved with another one's target."""
    narrow = edit.weights(bits=4)(targets.qdq)
    saved = {}
    for name, target in (("a", targets.qdq), ("b", narrow)):
        done = qfunc.calibrate([torch.ones(1, 64)], progress=False)(qfunc.quantize(target)(one_layer()))
        saved[name] = qfunc.save(tmp_path / name)(done)
    reports = {name: json.loads((place / "qfunc.json").read_text()) for name, place in saved.items()}
    (saved["a"] / "qfunc.json").write_text(json.dumps({**reports["a"], "target": reports["b"]["target"]}))
    with pytest.raises(CalibrationError) as e:
        qfunc.load(saved["a"])(one_layer())
    assert str(e.value) == (
        f"load('{saved['a']}'): found codes that no quantizer reads: 0.weight, wanted the saved network. "
        "Build the model as it was when it was saved, and pass the arguments of the original quantize."
    )


@pytest.mark.parametrize(("value", "found"), [("codes", "'codes'"), (qfunc.CodedWeights, "CodedWeights"), (True, "True")])
def test_other_forms(value: Any, found: str) -> None:
    with pytest.raises(SpecError) as e:
        qfunc.save("x", value)
    assert str(e.value) == (
        f"save, weights: found {found}, wanted qfunc.CodedWeights() or qfunc.FloatWeights(). "
        "Write weights=qfunc.FloatWeights()."
    )


def test_the_saved_model_itself_is_as_before(tmp_path: Path) -> None:
    _, _, done = calibrated("residual")
    before = state(done)
    qfunc.save(tmp_path)(done)
    assert same_state(state(done), before)
    assert all(q.cache.value is None for q in done.modules() if hasattr(q, "cache"))
