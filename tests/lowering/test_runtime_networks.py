"""Artifacts of NNIE, Vitis AI, OpenVINO, TVM and Tengine for networks of the field: valid, complete, run where possible."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.lowering.onnx.reader import tensors
from tests.networks import NETWORKS

NAMES = ("nnie", "vitis", "openvino", "onnx_qnn", "tengine_u8")


def deployed(name: str, network: str) -> tuple[Any, dict[str, bytes]]:
    """(the simulation, the files)."""
    torch.manual_seed(0)
    target, net = getattr(targets, name), NETWORKS[network]().eval()
    for pool in (m for m in net.modules() if isinstance(m, nn.MaxPool2d) and name == "nnie"):
        pool.ceil_mode = True  # the chip's pools round sizes up
    done = qfunc.calibrate([torch.randn(1, 3, 32, 32)], progress=False)(qfunc.quantize(target)(net))
    return done, dict(qfunc.deploy(target)(done).files)


def named(files: dict[str, bytes]) -> set[str]:
    """What the file beside the model names: tensors, or nodes."""
    if "vitis.json" in files:
        return set(json.loads(files["vitis.json"])["vitis"])
    if "gfpq_param_dict.json" in files:
        return set(json.loads(files["gfpq_param_dict.json"])["nnie"]["gfpq_param_dict"])
    return {line.split(" ")[0] for line in files.get("model.scale", b"").decode().splitlines()}


@pytest.mark.thorough
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_files_are_valid_complete_and_run(name: str, network: str) -> None:
    done, files = deployed(name, network)
    complete(name, files)
    if name != "openvino":
        runs(done, files)
    if name == "onnx_qnn":
        equals_the_emulation(done, files)


def complete(name: str, files: dict[str, bytes]) -> None:
    """ONNX's checker; the file beside a model names its tensors or nodes, all that are quantized and no other."""
    models = {f: onnx.load_from_string(c) for f, c in files.items() if f.endswith(".onnx")}
    for model in models.values():
        onnx.checker.check_model(model)
    beside = "model_float.onnx" if name == "vitis" else "model.onnx"
    nodes = {n.name for n in models[beside].graph.node}
    sites = json.loads(files["qfunc.json"])["tensors"]
    there = tensors(files[beside])
    if name == "nnie":
        assert named(files) <= nodes
        plain = [
            n
            for n in models[beside].graph.node
            if n.op_type == "Conv" and all(a.i == 1 for a in n.attribute if a.name == "group")
        ]
        assert named(files) >= {n.name for n in plain}
    else:
        assert named(files) <= there
    wanted = {t for s in sites for t in s["tensors"] if name == "vitis" or s["role"] == "activation"}
    if name in ("vitis", "tengine_u8"):
        assert named(files) >= wanted
    if name in ("nnie", "vitis", "tengine_u8"):
        assert wanted <= there
        assert not any("Quantize" in n.op_type for n in models[beside].graph.node)


def runs(done: Any, files: dict[str, bytes]) -> None:
    """Every model in ONNX Runtime."""
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    simulated = done(x).detach().numpy()
    for file, content in files.items():
        if file.endswith(".onnx"):
            got = OnnxRuntimeRunner(optimise=False).session(content).run([x])[0]
            # Float models lack the noise of 8 bits, and of Q/DQ single codes differ: an energy below 1/100.
            assert np.square(got - simulated).sum() < 0.01 * np.square(simulated).sum(), file


def equals_the_emulation(done: Any, files: dict[str, bytes]) -> None:
    """TVM's artifact: every op on codes, every output equal."""
    kinds = {n.op_type for n in onnx.load_from_string(files["model.onnx"]).graph.node}
    assert not kinds & {"Conv", "Gemm", "Add", "GlobalAveragePool", "Relu", "Clip", "Concat"}
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    wanted = qfunc.emulate(targets.onnx_qnn)(done)(x)
    for optimise in (False, True):
        got = OnnxRuntimeRunner(optimise=optimise).session(files["model.onnx"]).run([x])[0]
        assert torch.equal(torch.from_numpy(got), wanted)
