"""The files of TensorRT, SNPE, PPL, PPL-CUDA and STPU, read back by readers of their own and obeyed."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper

from qfunc import targets
from qfunc.lowering.program import Program
from tests.lowering.onnx.test_qdq_nodes import parts, run
from tests.lowering.toolchains.vendor_net import CASES, READERS, Net, Reader, as_float, made, own_ranges
from tests.lowering.toolchains.vendor_readers import (
    Range, model_of, names_of, obeying,
)  # fmt: skip
from tests.networks import MobileNetV2, ResNet18

each_reader = pytest.mark.parametrize(("name", "reader"), CASES, ids=[f"{n}-{r.__name__}" for n, r in CASES])


@each_reader
def test_the_ranges_are_those_of_the_fake_quantizers(name: str, reader: Reader) -> None:
    done, _, _, files = made(name)
    read, own = reader(files), own_ranges(done)
    weights = {n for n in own if n.endswith("weight")}
    left_out = weights if name in ("tensorrt", "ppl_cuda") else set()
    assert own.keys() - read.keys() == left_out
    assert len(own) - len(left_out) > 5
    if name == "stpu":
        folded = [Range(*(0.75 * float(v) for v in r)) for r in own.pop("t.weight")]
        assert as_float(read["t.weight"]) == as_float(tuple(folded))
    for tensor in own.keys() - left_out:
        if name in ("ppl_cuda", "stpu"):
            assert as_float(read[tensor]) == as_float(own[tensor])  # the largest is exact, a 127th of it is nearly
        else:
            assert read[tensor] == own[tensor]


@each_reader
def test_every_name_is_a_tensor_of_the_model(name: str, reader: Reader) -> None:
    _, _, sites, files = made(name)
    read, there = reader(files), names_of(model_of(files))
    if name != "stpu":
        carried = {t for s in sites if s.role == "activation" for t in s.tensors}
        assert {t for t in read if t in carried} == carried
    assert read.keys() <= there


@each_reader
def test_a_toolchain_that_obeys_the_files_computes_the_simulation(name: str, reader: Reader) -> None:
    done, _, _, files = made(name)
    torch.manual_seed(1)
    x = torch.randn(5, 3, 8, 6)
    with torch.no_grad():
        simulated = done(x)
    obeyed, ignored = (run(m, x) for m in (obeying(files, reader), model_of(files)))
    # Both round real numbers of one formula, summed in float32 in other orders: 1e-5 is far above the error of
    # such sums and far below a step, and a few codes at ties may flip.  Without its ranges no output is right.
    near = 1e-5 * float(simulated.abs().max())
    assert ((obeyed - simulated).abs() <= near).double().mean() >= 0.8
    assert ((ignored - simulated).abs() > near).all()


@pytest.mark.parametrize("name", READERS)
def test_stored_weights_are_the_quantized_ones(name: str) -> None:
    _, _, sites, files = made(name)
    stored = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in model_of(files).graph.initializer}
    torch.manual_seed(0)
    net = Net()
    for site in (s for s in sites if s.role == "weight"):
        w, axis = net.get_parameter(site.name), site.axis or 0
        shape = [-1 if i == axis else 1 for i in range(w.ndim)]
        step, zero = torch.tensor(site.scale).reshape(shape), torch.tensor(site.zero_point).reshape(shape)
        # The oracle is the definition, s (clamp(round(w / s) + z) - z).
        wanted = (torch.clamp(torch.round(w / step) + zero, site.low, site.high) - zero) * step
        if name == "stpu" and site.name == "t.weight":
            wanted = wanted * -0.75
        assert torch.equal(stored[site.name], wanted.detach())


@pytest.mark.parametrize("name", READERS)
def test_two_deploys_give_the_same_bytes(name: str) -> None:
    _, model, sites, files = made(name)
    before = model.SerializeToString(deterministic=True)
    assert getattr(targets, name).lowering.lower(Program(model, sites)) == files
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.thorough
@pytest.mark.parametrize("network", [ResNet18, MobileNetV2])
@pytest.mark.parametrize("name", READERS)
def test_every_model_of_an_artifact_loads_and_runs(name: str, network: Any) -> None:
    torch.manual_seed(0)
    net = network().eval()
    done, model, sites = parts(getattr(targets, name), net, torch.randn(2, 3, 32, 32))
    files = getattr(targets, name).lowering.lower(Program(model, sites))
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        simulated, plain = done(x), net(x)
    for file in (f for f in files if f.endswith(".onnx")):
        proto = onnx.load_from_string(files[file])
        onnx.checker.check_model(proto, full_check=True)
        wanted = simulated if any(n.op_type == "QuantizeLinear" for n in proto.graph.node) else plain
        error = (run(proto, x) - wanted).square().sum() / wanted.square().sum()
        # 8-bit weights of random networks, per tensor at the worst; flips of codes for the Q/DQ model.
        assert error < 0.05
    for reader in READERS[name]:
        read, own = reader(files), own_ranges(done)
        assert read.keys() <= names_of(model_of(files))
        activations = {t for s in sites if s.role == "activation" for t in s.tensors}
        assert activations <= read.keys()
        for tensor in own.keys() & read.keys():
            assert as_float(read[tensor]) == as_float(own[tensor])
