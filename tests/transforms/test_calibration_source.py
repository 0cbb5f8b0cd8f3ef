"""calibrate(through=Quantized()): the statistics are those of the network as quantized so far."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import qfunc
from qfunc.graph.float_network import float_network
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, equal, quantized, same_state, state
from tests.transforms.nets import NAMES
from tests.transforms.test_errors import told

TARGET = ONNXRUNTIME


def ranges(model: Any, batch: Any, quantizers: set[str]) -> dict[str, tuple[float, float]]:
    """The range of each activation site's tensor where the named quantizers are on, run by hand."""
    found: dict[str, tuple[float, float]] = {}

    class Run(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n.op != "call_module" or not str(n.target).startswith("quantizers."):
                return super().run_node(n)
            x = self.env[n.all_input_nodes[0]]
            module: Any = model.get_submodule(str(n.target))
            if not module.site.constant:
                found[str(n.target)] = float(x.min()), float(x.max())
            return module(x) if n.target in quantizers else x

    with torch.no_grad():
        Run(model.eval()).run(*arguments(batch))
    return found


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "branches"])  # its concat ties ranges
def test_the_statistics_come_from_behind_what_has_qparams(name: str, export: bool) -> None:
    _, batch, made = quantized(name, export=export)
    before = state(made)
    weights = {s.path for s in quantizer_nodes(made) if s.module.ready}
    assert {s.module.site.constant for s in quantizer_nodes(made) if s.path in weights} == {True}
    one = qfunc.calibrate([batch], through=qfunc.QuantizedPass())(made)
    assert same_state(state(made), before)
    two = qfunc.calibrate([batch], through=qfunc.QuantizedPass())(one)
    everything = {s.path for s in quantizer_nodes(one)}
    for done, wanted in ((one, ranges(made, batch, weights)), (two, ranges(one, batch, everything))):
        for path, (low, high) in wanted.items():
            # Asymmetric MinMax in 8 bits over a range that holds zero: s = (high - low) / 255.
            scale = (max(high, 0.0) - min(low, 0.0)) / 255
            assert float(done.get_submodule(path).scale) == pytest.approx(scale, rel=1e-6)


def test_the_default_is_the_float_network() -> None:
    _, x, made = quantized("residual")
    plain, named, behind = (
        qfunc.calibrate([x], **k)(made) for k in ({}, {"through": qfunc.FloatPass()}, {"through": qfunc.QuantizedPass()})
    )
    assert same_state(state(plain), state(named))
    assert not same_state(state(plain), state(behind))


def test_nothing_quantized_is_the_float_network() -> None:
    _, x, made = quantized("residual")
    bare = qfunc.bypass(edit.name("*"), roles=("weight", "bias"))(made)
    one, other = (qfunc.calibrate([x], through=t)(bare) for t in (qfunc.FloatPass(), qfunc.QuantizedPass()))
    assert same_state(state(one), state(other))


def test_several_models_read_each_batch_once() -> None:
    _, x, made = quantized("residual")
    other = qfunc.quantize(edit.weights(bits=4)(TARGET))(quantized("residual")[0])
    read = []

    def batches() -> Any:
        for part in (x, 2 * x):
            read.append(part)
            yield part

    pair = qfunc.calibrate(batches(), through=qfunc.QuantizedPass())((made, other))
    assert len(read) == 2
    for model, done in zip((made, other), pair, strict=True):
        alone = qfunc.calibrate([x, 2 * x], through=qfunc.QuantizedPass())(model)
        assert same_state(state(alone), state(done))
        assert equal(alone.eval()(x), done.eval()(x))


def test_models_of_different_networks_may_share_the_batches() -> None:
    _, x, made = quantized("residual")
    _, _, other = quantized("branches")
    pair = qfunc.calibrate([x], through=qfunc.QuantizedPass())((made, other))
    assert [equal(float_network(a)(x), float_network(b)(x)) for a, b in zip(pair, (made, other), strict=True)] == [True, True]


def test_wrong_uses_are_told_whole() -> None:
    text = (
        "calibrate, through: found {}, wanted qfunc.FloatPass() or qfunc.QuantizedPass(). Write through=qfunc.QuantizedPass()."
    )
    told(lambda: qfunc.calibrate([], through=qfunc.QuantizedPass), "SpecError", text.format("QuantizedPass"))  # type: ignore[arg-type]
    told(lambda: qfunc.calibrate([], through="float"), "SpecError", text.format("'float'"))  # type: ignore[arg-type]
    _, _, made = quantized("residual")
    text = "calibrate: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    told(lambda: qfunc.calibrate([], through=qfunc.QuantizedPass())(made), "CalibrationError", text)
