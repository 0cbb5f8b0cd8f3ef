"""gptq: laws of the result on exported language models, in the arithmetic of each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from networks.exported import Decoder
from torch import Tensor, nn

import qfunc
from qfunc import functions, targets
from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.view import QuantizedModel
from qfunc.specs import edit
from qfunc.specs.formats import MATMUL_4BITS_AFFINE, MXFP4, NVFP4
from tests.reconstruction.small_nets import Chain, images
from tests.reconstruction.test_exported_language_models import export, tokens

BATCHES = [tokens(8, 6, seed=0), tokens(3, 9, seed=1), tokens(8, 6, seed=2)]
"""Of several lengths: nothing has to be of one size."""
ENGINES = {
    "nbits4": targets.onnxruntime_nbits(4, 32, 4),
    "nbits2_affine": targets.onnxruntime_nbits(2, 32, 0, MATMUL_4BITS_AFFINE),
    "gguf": targets.gguf("Q4_0"),
    "8da4w": evolve(targets.executorch_8da4w(32), lowering=None),  # XNNPACK's files take embeddings, not tokens
}


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """All inputs of linear layers are multiples of 32."""
    torch.manual_seed(0)
    model = Decoder(width=64, heads=4).eval()
    model.gate, model.up, model.down = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)
    return model


def nearest(network: nn.Module, target: Any) -> Any:
    """The calibrated model, rounded to nearest."""
    return qfunc.calibrate(BATCHES, progress=False)(qfunc.quantize(target)(export(network, tokens(2, 7))))


def weights(model: Any) -> dict[str, tuple[Tensor, Tensor, str]]:
    """The codes, the values and the reading op of each weight, by site."""
    view, found = QuantizedModel(model), {}
    for quantizer in view.quantizers:
        if quantizer.module.site.slot == "weight":
            weight = view.float_network.get_parameter(
                next(str(n.target) for n in view.float_network.graph.nodes if n.name == quantizer.tensor)
            )
            with torch.no_grad():
                value = quantizer.module.eval()(weight)
            found[quantizer.module.site.name] = quantizer.module.export(weight)[0], value, quantizer.readers[0]
    return found


def inputs(network: Any) -> dict[str, Tensor]:
    """The inputs of each linear layer over all batches, [vectors, in] in float64, by the layer's name."""
    names = {n.name: n.args[0].name for n in network.graph.nodes if n.target is torch.nn.functional.linear}
    seen: dict[str, list[Tensor]] = {}

    def add(name: str, value: Tensor) -> None:
        seen.setdefault(name, []).append(value.reshape(-1, value.shape[-1]).double())

    interpreter = ObservingInterpreter(network, add, set(names.values()))
    with torch.no_grad():
        for batch in BATCHES:
            interpreter.run_batch(tuple(batch.values()), "test")
    return {op: torch.cat(seen[x]) for op, x in names.items()}


@pytest.mark.thorough
@pytest.mark.parametrize(("passes", "share"), [(0, 1.0), (1, 1.0), (1, 0.25), (1, 0)])
@pytest.mark.parametrize("name", ENGINES)
def test_no_output_has_a_larger_error_than_rounded_to_nearest(network: nn.Module, name: str, passes: int, share: float) -> None:
    """Of float outputs, on the inputs that the result's own layers have: no other order of layers gives these inputs."""
    before = nearest(network, ENGINES[name])
    result = qfunc.gptq(BATCHES, progress=False, passes=passes, earlier_errors=share)(before)
    view = QuantizedModel(result)
    wanted, found = inputs(view.float_network), inputs(view.network_so_far)
    total = torch.zeros(2, dtype=torch.float64)
    for (site, (_, value, op)), (_, plain, _) in zip(weights(result).items(), weights(before).values(), strict=True):
        weight, x = network.get_parameter(site).detach().double(), found[op]
        y = x + share * (wanted[op] - x)
        damping = 0.01 * x.square().sum(0).mean()
        left, right = (
            (y @ weight.T - x @ v.double().T).square().sum(0) + damping * (weight - v).square().sum(1) for v in (value, plain)
        )
        # The two errors are compared as (W' - V) H (W' - V)^T, with W' and H in float32: each sum of 96 terms and W' are off by
        # 97 roundings of their magnitudes.
        hessian = x.T @ x + damping * torch.eye(x.shape[1])
        moved = weight + torch.linalg.solve(hessian, x.T @ (y - x) @ weight.T).T
        scale = torch.stack([((moved.abs() + v.abs()) @ hessian.abs() * (moved - v).abs()).sum(1) for v in (value, plain)])
        assert (left <= right + 2 * 97 * 2.0**-23 * scale.amax(0)).all(), site
        total += torch.stack([left.sum(), right.sum()])
    assert total[0] < 0.9 * total[1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nbits4", "nbits2_affine", "gguf"])
def test_the_engine_computes_with_these_codes(network: nn.Module, name: str) -> None:
    if name == "gguf":
        pytest.importorskip("libggml", reason="libggml-python is not installed")
    target, sequences = ENGINES[name], [tokens(4, 6, seed=5)]
    result = qfunc.gptq(BATCHES, progress=False)(nearest(network, target))
    codes = [
        (a, b)
        for (a, _, _), (b, _, _) in zip(weights(result).values(), weights(nearest(network, target)).values(), strict=True)
    ]
    assert sum(int((a != b).sum()) for a, b in codes) > 100
    report = qfunc.verify(target)(result, sequences)
    assert report.predicted >= 8 or name == "nbits2_affine"  # a float product has no codes
    assert not report.disagreements


def test_executorch_computes_with_these_codes() -> None:
    """Its programs get embeddings, not ids."""
    pytest.importorskip("executorch", reason="executorch is not installed")
    torch.manual_seed(0)
    states = torch.randn(40, 64) @ torch.randn(64, 64) / 8
    gated = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 64)).eval()
    target = targets.executorch_8da4w(32)
    before = qfunc.calibrate([states], progress=False)(qfunc.quantize(target)(gated))
    result = qfunc.gptq([states], progress=False)(before)
    assert all((a != b).any() for (a, *_), (b, *_) in zip(weights(result).values(), weights(before).values(), strict=True))
    report = qfunc.verify(target)(result, [states])
    assert report.predicted == 2
    assert not report.disagreements


@pytest.mark.parametrize("weight", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
def test_other_formats(network: nn.Module, weight: Any) -> None:
    target = targets.academic(4, 8)
    target = evolve(target, lowering=None, rules=tuple(evolve(rule, weight=weight) for rule in target.rules))
    before = nearest(network, target)
    result = qfunc.gptq(BATCHES, progress=False)(before)
    with torch.no_grad():
        wanted = [network(**b)["logits"] for b in BATCHES]
        outputs = [
            sum(float((m(**b)["logits"] - w).square().sum()) for b, w in zip(BATCHES, wanted, strict=True))
            for m in (before, result)
        ]
    assert outputs[1] < outputs[0]


@pytest.mark.thorough
def test_it_composes_saves_and_leaves_the_model(network: nn.Module, tmp_path: Path) -> None:
    target = ENGINES["nbits4"]
    steps = qfunc.compose(qfunc.quantize(target), qfunc.calibrate(BATCHES, progress=False), qfunc.gptq(BATCHES, progress=False))
    result, before = steps(export(network, tokens(2, 7))), nearest(network, target)
    state = {k: v.clone() for k, v in before.state_dict().items()}
    again = qfunc.gptq(BATCHES, progress=False)(before)
    assert all(torch.equal(v, state[k]) for k, v in before.state_dict().items())
    given = tokens(2, 8, seed=9)
    with torch.no_grad():
        assert torch.equal(again(**given)["logits"], result(**given)["logits"])
    qfunc.save(tmp_path / "model")(result)
    loaded = qfunc.load(tmp_path / "model")(export(network, tokens(2, 7)))
    assert all(torch.equal(a, b) for (a, *_), (b, *_) in zip(weights(result).values(), weights(loaded).values(), strict=True))
    rounded = {site: value for site, (_, value, _) in weights(result).items()}
    second = qfunc.gptq(BATCHES, progress=False)(result)  # from the float weights once more
    assert all(torch.equal(value, rounded[site]) for site, (_, value, _) in weights(second).items())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nbits4", "gguf"])
def test_calibration_may_follow_where_only_weights_have_static_scales(network: nn.Module, name: str) -> None:
    target = ENGINES[name]
    rounded = qfunc.gptq(BATCHES, progress=False)(qfunc.quantize(target)(export(network, tokens(2, 7))))
    after = qfunc.calibrate(BATCHES, progress=False)(rounded)
    before = qfunc.gptq(BATCHES, progress=False)(nearest(network, target))
    found, wanted = (qfunc.deploy(target)(model).files for model in (after, before))
    assert dict(found) == dict(wanted)


def test_static_scales_of_activations_are_calibrated_first(network: nn.Module) -> None:
    quantized = qfunc.quantize(targets.academic(3, 8))(export(network, tokens(2, 7)))
    with pytest.raises(CalibrationError, match=r"^gptq: found a quantized model without qparams at site '.*', wanted a "):
        qfunc.gptq(BATCHES, progress=False)(quantized)


def test_selected_layers(network: nn.Module) -> None:
    before = nearest(network, ENGINES["nbits4"])
    result = qfunc.gptq(BATCHES, progress=False, select=edit.name("down"))(before)
    changed = {
        site
        for (site, (a, *_)), (b, *_) in zip(weights(result).items(), weights(before).values(), strict=True)
        if (a != b).any()
    }
    assert changed == {"down.weight"}


class Several(nn.Module):
    """Three layers of unlike sizes on the same inputs, and one on their outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, n) for n in (48, 16, 32))
        self.last = nn.Linear(96, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self.last(torch.cat([self.first(x), self.second(x), self.third(x)], 1))


@pytest.mark.parametrize("name", ENGINES)
def test_layers_on_the_same_inputs_are_rounded_as_each_alone(name: str) -> None:
    """They are rounded together; other sizes of products may add floats in another order, which moves few codes by one."""
    torch.manual_seed(1)
    float_network = Several().eval()
    batches = [torch.randn(96, 64) @ torch.randn(64, 64) for _ in range(2)]
    before = qfunc.calibrate(batches, progress=False)(qfunc.quantize(ENGINES[name])(float_network))
    together = weights(qfunc.gptq(batches, progress=False)(before))
    for op in ("first", "second", "third"):
        alone = weights(qfunc.gptq(batches, progress=False, select=edit.name(op))(before))
        (site,) = (site for site in together if op in site)
        assert float((together[site][1] != alone[site][1]).double().mean()) < 0.005, site


def test_what_is_refused(network: nn.Module) -> None:
    model = nearest(network, ENGINES["nbits4"])
    for make, message in (
        (lambda: qfunc.gptq(BATCHES, damping=0), "gptq, damping: found 0, wanted a positive number. Write damping=0.01."),
        (lambda: qfunc.gptq(BATCHES, passes=-1), "gptq, passes: found -1, wanted 0 or a positive integer. Write passes=2."),
        (
            lambda: qfunc.gptq(BATCHES, earlier_errors=1.5),
            "gptq, earlier_errors: found 1.5, wanted a number from 0 to 1. Write earlier_errors=1.0.",
        ),
        (
            lambda: qfunc.gptq(BATCHES, select=edit.op("conv"))(model),
            "gptq, select: found Op('conv'), which matches no linear layer with a quantized weight, wanted a selector of "
            "such layers. They are: query, key, value, dense, gate, up, down, head.",
        ),
    ):
        with pytest.raises(SpecError) as e:
            make()
        assert str(e.value) == message
    adaround = edit.weights(function=functions.AdaRound())(ENGINES["nbits4"])
    with pytest.raises(SpecError) as e:
        qfunc.gptq(BATCHES, progress=False)(nearest(network, adaround))
    assert str(e.value) == (
        "gptq, site 'word.weight': found the function AdaRound(inner=Fixed(), zeta=1.1, gamma=-0.1), wanted a function that "
        "Compensation can wrap: a function that trains with `apply`, without a `relax`. Use edit.weights(function=Fixed()) "
        "first, or exclude the op with select=."
    )
    for kind in ("Q4_1", "Q4_K", "Q6_K"):
        wide = qfunc.calibrate([torch.randn(4, 256)], progress=False)(qfunc.quantize(targets.gguf(kind))(nn.Linear(256, 8)))
        with pytest.raises(SpecError) as e:
            qfunc.gptq([torch.randn(4, 256)], progress=False)(wide)
        assert str(e.value) == (
            "gptq, site 'weight': found a scheme whose scales or minimums are searched together with the codes, wanted scales "
            "that stay when codes change. Use a type with scales alone, such as Q4_0, or exclude the op with select=."
        )
    with pytest.raises(CalibrationError) as c:
        qfunc.gptq([], progress=False)(model)
    assert str(c.value) == ("gptq: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up.")
    convs = qfunc.calibrate([images(4)])(qfunc.quantize(edit.skip(edit.op("linear"))(targets.academic(4, 8)))(Chain(1)))
    with pytest.raises(CalibrationError) as c:
        qfunc.gptq([images(4)], progress=False)(convs)
    assert str(c.value) == (
        "gptq: found no quantized weight that a linear layer reads, wanted at least one. Quantize for a target that quantizes "
        "weights."
    )


def test_without_earlier_errors_the_float_network_does_not_run() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(32, 8)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.academic(3, 8))(net))
    plain, other = (
        qfunc.gptq([x], progress=False, earlier_errors=0, float_batches=given)(calibrated) for given in (None, [x * torch.nan])
    )
    assert torch.equal(plain(x), other(x))
    assert not torch.equal(plain(x), qfunc.gptq([x], progress=False)(calibrated)(x))  # the second layer makes up for the first


def test_float_batches_are_as_many_as_the_batches() -> None:
    net, x = nn.Linear(4, 3), torch.randn(8, 4)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.academic(3, 8))(net))
    with pytest.raises(CalibrationError) as caught:
        qfunc.gptq([x, x], progress=False, float_batches=[x])(calibrated)
    assert str(caught.value) == (
        "gptq, float_batches: found 1 calls, wanted 2. Give what the part reads in the float network for each of the "
        "batches, in their order."
    )
