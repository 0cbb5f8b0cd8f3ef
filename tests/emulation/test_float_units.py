"""Float units against the float64 values of their ops: bounds hold for float32 in any order, and a wrong eps is beyond them."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.emulation.approximation import Approximation
from qfunc.emulation.error_bounds import approximate, at_extremum
from qfunc.emulation.norm_bounds import approximate_module
from qfunc.frontend.capture import capture
from qfunc.specs import edit
from tests.conformance.modules import Apply

PACKAGES = {
    "onnxruntime": "onnxruntime", "openvino": "openvino", "ncnn": "ncnn", "litert": "ai_edge_litert",
    "litert_reference": "ai_edge_litert", "litert_optimised": "ai_edge_litert", "executorch_xnnpack": "executorch",
}  # fmt: skip
NORM_OF_ROWS = ("litert", "litert_reference", "litert_optimised", "executorch_xnnpack")  # which refuse norms of groups
OPS = {
    "layer_norm": lambda x: F.layer_norm(x, (6,), torch.linspace(-1, 1, 6), torch.ones(6)),
    "rms_norm": lambda x: F.rms_norm(x, [6]),
    "group_norm": lambda x: F.group_norm(x, 2, torch.linspace(-1, 1, 4), torch.ones(4)),
    "instance_norm": lambda x: F.instance_norm(x),
    "local_response_norm": lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 2.0),
    "local_response_norm, even": lambda x: F.local_response_norm(x, 2, 1e-4, 1.5, 0.1),
    "local_response_norm, of tanh": lambda x: F.local_response_norm(torch.tanh(x), 5, 2.0, -0.5, 1.0),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "mean": lambda x: x.mean((1, 2)),
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(1),
    "global_avg_pool": lambda x: x.mean((2, 3)),
    "avg_pool": lambda x: F.avg_pool2d(x, 2, 1, 1),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, (5, 2)),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "amax": lambda x: x.amax(1),
    "conv": lambda x: F.conv2d(x, torch.linspace(-1, 2, 32).reshape(4, 2, 2, 2), torch.ones(4), groups=2),
    "conv_transpose": lambda x: F.conv_transpose2d(x, torch.linspace(-1, 2, 48).reshape(4, 3, 2, 2)),
    "linear": lambda x: F.linear(x, torch.linspace(-1, 2, 18).reshape(3, 6)),
    "matmul": lambda x: x @ x.transpose(2, 3),
    "resize": lambda x: F.interpolate(x, (7, 9), mode="bilinear"),
    "resize, bicubic": lambda x: F.interpolate(x, (7, 9), mode="bicubic"),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, (3, 2)),
    "pad": lambda x: F.pad(torch.tanh(x), (1, 2), value=5.0),
    "pad, reflect": lambda x: F.pad(torch.tanh(x), (1, 2, 0, 1), mode="reflect"),
    "split": lambda x: torch.tanh(x).split(2, 1)[1],
    "resize of zeros": lambda x: F.interpolate(torch.relu(x), (7, 11), mode="bilinear"),
    "cumsum": lambda x: x.cumsum(1),
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "mul": lambda x: x * x.flip(0),
    "div": lambda x: x / (x.abs() + 1),
    "relu": torch.relu,
    "concat": lambda x: torch.cat([x, x], 1),
    "softmin": lambda x: F.softmin(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, (1, 2)),
    "glu": lambda x: F.glu(x, 1),
    "einsum": lambda x: torch.einsum("bchw,bcvw->bhv", x, x),
    "einsum of three": lambda x: torch.einsum("bchw,bcvw,vw->bh", x, x, x[0, 0]),
    "outer": lambda x: torch.outer(x[0, 0, 0], x[1, 0, 0]),
    "difference": lambda x: torch.diff(x, dim=2),
    "tril": lambda x: torch.tril(torch.tanh(x)),
    "windows": lambda x: F.unfold(torch.tanh(x), 2),
    "var": lambda x: x.var((1, 3)),
    "var, of the population": lambda x: x.var(2, correction=0, keepdim=True),
    "std": lambda x: x.std(1),
    "var_mean": lambda x: (lambda found: found[0] + found[1])(torch.var_mean(x, (2, 3))),
    "std_mean": lambda x: (lambda found: found[0] * found[1])(torch.std_mean(x, 1, keepdim=True)),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "vector_norm, of magnitudes": lambda x: torch.linalg.vector_norm(x, 1, dim=(1, 2)),
    "normalize": lambda x: F.normalize(x),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), 1),
    "max": lambda x: x.max(1)[0],
    "min": lambda x: x.min(2, keepdim=True)[0],
    "sort": lambda x: x.sort(-1)[0],
    "topk": lambda x: x.topk(2, 1)[0],
}  # fmt: skip


def _bounded(function: Any, x: Tensor, error: Tensor) -> Approximation:
    # The approximation of a whole graph, node by node.
    network = capture()(Apply(function))
    state: dict[Any, Any] = {}
    for node in network.graph.nodes:
        if node.op == "placeholder":
            state[node] = Approximation(x.double(), error.double())
        elif node.op == "get_attr":
            state[node] = Approximation.exact(network.get_buffer(node.target))
        elif node.op == "call_function":
            arguments = torch.fx.map_arg(node.args, state.__getitem__)
            state[node] = approximate(node, arguments)
            assert state[node] is not None, node.format_node()
        else:
            result = node.args[0][0] if isinstance(node.args[0], tuple | list) else node.args[0]
            return state[result]
    raise AssertionError


def test_the_place_of_an_extremum_is_bounded_by_the_error_of_the_values():
    """Of 1, 3 and 3 - 1e-4 the third may be found as the maximum; the first may not, nor another if there is no error."""
    network = capture()(Apply(lambda x: torch.argmax(x, -1)))
    place = next(n for n in network.graph.nodes if n.op == "call_function")
    x = torch.tensor([[1.0, 3.0, 3.0 - 1e-4]], dtype=torch.float64)
    read = Approximation(x, torch.full_like(x, 1e-4))
    for index, within in ((0, False), (1, True), (2, True)):
        deviation, bound = at_extremum(place, read, torch.tensor([index]))
        assert bool(deviation <= bound) is within
    assert at_extremum(place, read, torch.tensor([3])) is None
    assert at_extremum(place, Approximation.exact(x), torch.tensor([2])) is None


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_an_extremum_of_codes_is_not_one_of_the_real_values_before_them(name):
    """The average is a float unit, whose largest code several values have; the place is that of the first one."""
    pytest.importorskip("onnxruntime")
    torch.manual_seed(1)
    conv, find = nn.Conv2d(3, 8, 3, padding=1), getattr(torch, name)
    net = Apply(lambda x, conv: find(F.avg_pool2d(conv(x), 2, 1, divisor_override=3), -1), conv).eval()
    x = torch.randn(4, 3, 8, 8)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    report = qfunc.verify(targets.onnxruntime)(model, [x, 2 * x])
    assert report.verdict.startswith("bit-exact: 0 of"), report
    assert ("avg_pool2d", "the target has no integer kernel for it") in report.float_units


def test_an_instance_norm_that_stays_a_module_has_a_bound():
    norm = nn.InstanceNorm2d(4, affine=True).eval()
    x = torch.randn(2, 4, 5, 6, generator=torch.Generator().manual_seed(4))
    for offset in (0.0, 3.0):
        found = approximate_module(norm, (Approximation.exact(x + offset),))
        assert bool(((norm(x + offset).double() - found.value).abs() <= found.error).all())
        assert float(found.error.max()) < 1e-3 * float(found.value.abs().max())
    assert approximate_module(nn.BatchNorm2d(4), (Approximation.exact(x),)) is None


@pytest.mark.parametrize("variance", [0.15, 1e-4, 1e4])
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_that_stays_a_module_carries_the_error_of_its_input(variance: float, affine: bool) -> None:
    """In both forms of float32, (x - m) a + b and x a + (b - m a); the oracle is the formula in float64."""
    g = torch.Generator().manual_seed(4)
    norm = nn.BatchNorm3d(4, affine=affine).eval()
    norm.running_mean, norm.running_var = torch.randn(4, generator=g), torch.full((4,), variance)
    x, error = torch.randn(2, 4, 3, 3, 3, generator=g), 1e-3 * torch.rand(2, 4, 3, 3, 3, generator=g)
    found = approximate_module(norm, (Approximation(x.double(), error.double()),))
    shape = (1, 4, 1, 1, 1)
    m, v = (t.double().reshape(shape) for t in (norm.running_mean, norm.running_var))
    wanted = (x.double() - m) / torch.sqrt(v + norm.eps)
    assert torch.allclose(found.value, wanted, rtol=1e-12, atol=1e-12)  # float64 in another order
    a = torch.rsqrt(norm.running_var + norm.eps).reshape(shape)
    c = -norm.running_mean.reshape(shape) * a
    for sign in (-1.0, 0.0, 1.0):
        moved = x + sign * error
        for actual in (norm(moved), moved * a + c):
            assert bool(((actual.double() - wanted).abs() <= found.error).all())
    exact = approximate_module(norm, (Approximation.exact(x),))
    assert float(exact.error.max()) < 1e-5 * float(exact.value.abs().max())


@pytest.mark.parametrize("pad", ["constant", "reflect"])
def test_a_bound_reaches_through_the_float_units_after_it(pad: str) -> None:
    """ONNX Runtime's group norm of data around 1000 is off by several codes, which a batch norm of variance 0.15 enlarges."""
    torch.manual_seed(0)
    norms = nn.GroupNorm(2, 4), nn.BatchNorm3d(4)
    norms[1].running_var.fill_(0.15)
    norms[1].running_mean.normal_()
    net = Apply(lambda x, g, b, conv: conv(b(F.pad(g(x), (1,) * 6, pad))), *norms, nn.Conv3d(4, 4, 3, padding=1)).eval()
    batches = [1000 + torch.randn(1, 4, 6, 6, 6) for _ in range(2)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    report = qfunc.verify(targets.onnxruntime)(model, batches)
    assert report.unbounded == ()
    assert max(row.largest_lsb for row in report.of("codes")) > 1  # it is off
    assert report.agreement.startswith("bit-exact outside 3 float units: 0 of "), report


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("moved", [0.0, 1e-3])
def test_float32_is_within_the_bound_and_the_bound_is_near_it(name: str, moved: float) -> None:
    """Also of inputs that are off by their error; the bound is at most a thousandth of the values without such an error."""
    function, g = OPS[name], torch.Generator().manual_seed(4)
    for offset in (0.0, 3.0):
        x = torch.randn(2, 4, 5, 6, generator=g) + offset
        error = moved * torch.rand(x.shape, generator=g)
        found = _bounded(function, x, error)
        exact = function(x.double()) if name in ("mul", "div", "relu", "tanh", "gelu", "silu", "concat", "sum") else found.value
        assert torch.equal(exact, found.value)
        for sign in (-1.0, 1.0):
            signs = sign * torch.sign(torch.randn(x.shape, generator=g))
            actual = function((x + signs * error).float())
            assert bool(((actual.double() - found.value).abs() <= found.error * (1 + 1e-3) + 1e-6 * bool(moved)).all())
        if not moved:
            assert float(found.error.max()) < 1e-3 * float(found.value.abs().max())


class Net(nn.Module):
    """A norm between a convolution and an activation."""

    def __init__(self, rows: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.rows = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), rows
        self.n: nn.Module = nn.LayerNorm(8) if rows else nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y = self.n(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.rows else self.n(y)
        return self.b(torch.relu(y))


@frozen
class Planted:
    """A runner that runs another artifact."""

    runner: Any
    artifact: Any

    def run(self, artifact: Any, inputs: Any) -> Any:
        return self.runner.run(self.artifact, inputs)

    def inside(self, artifact: Any) -> Any:
        return self.runner.inside(self.artifact)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wrong_eps_is_beyond_the_bound_on_every_runtime(name: str) -> None:
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name].replace('ai_edge_', 'ai-edge-')} is not installed")
    target, x = getattr(targets, name), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    net = Net(name in NORM_OF_ROWS)
    model, other = (qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net)) for _ in range(2))
    (norm,) = (n for n in other.graph.nodes if "norm" in str(n.target) and n.op == "call_function")
    norm.args = tuple(1e-3 if a == 1e-5 else a for a in norm.args)
    other.recompile()
    report = qfunc.verify(target)(model, [x])
    assert not report.verdict.startswith("mismatch")
    assert report.unbounded == ()
    assert all(row.largest_lsb <= 1 for row in report.of("float"))
    assert report.of("float")
    planted = qfunc.verify(target, runtime=Planted(target.runtime.runner, qfunc.deploy(target)(other)))(model, [x])
    assert planted.verdict.startswith("mismatch: ")
    assert ", of a float unit, deviates by " in planted.verdict


def test_the_report_tells_what_was_compared_and_what_was_not() -> None:
    target, x = targets.onnxruntime, torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Net(rows=False)))
    report = qfunc.verify(target)(model, [x])
    assert report.coverage == (
        "compared: 4 inner tensors and 1 outputs, 3,456 elements, 31,744 multiply-accumulates of 31,744 (100%), "
        "1 tensors of float units with bounds"
    )
    assert (report.skipped, report.unbounded, report.units_shown) == ((), (), "")
    run = qfunc.verify(target, runtime=lambda artifact, inputs: target.runtime.runner.run(artifact, inputs))
    report = run(model, [x])
    assert report.coverage == (
        "compared: 0 inner tensors and 1 outputs, 512 elements, 4,096 multiply-accumulates of 31,744 (13%)"
    )
    assert report.skipped == (("a", "the runtime shows its outputs only"),)
    assert report.unbounded == (("n", "the runtime shows no tensor after it"),)
    assert report.units_shown == "the runtime shows its outputs only"
    assert "\nnot compared, a: the runtime shows its outputs only\n" in str(report)


def test_a_product_that_float32_rounds_to_zero_is_within_its_bound() -> None:
    """1e-25 1e-25 1e30 = 1e-20, and 0 in float32 from the left: the partial product 1e-50 is no number of float32."""
    x = torch.tensor([[1e-25, 1e-25, 1e30]])
    found = _bounded(lambda x: x.prod(1), x, torch.zeros_like(x))
    assert float(x[0, 0] * x[0, 1] * x[0, 2]) == 0
    assert 0 < float(found.value) <= float(found.error)


def test_a_response_norm_is_bounded_and_a_wrong_constant_is_beyond_the_bound() -> None:
    """A kernel that divides the sum of squares by another number of channels."""
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    target, batch = targets.onnxruntime, torch.randn(2, 3, 6, 6)
    norm = nn.LocalResponseNorm(3, alpha=0.5, k=2.0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 4, 1)).eval()
    report = qfunc.verify(target)(qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(model)), [batch])
    assert report.agreement.startswith("bit-exact")
    assert not report.unbounded
    found = _bounded(norm, batch, torch.zeros_like(batch))
    wrong = nn.LocalResponseNorm(3, alpha=0.5 * 3 / 2, k=2.0)(batch)
    assert bool(((wrong.double() - found.value).abs() > 100 * found.error).any())


@pytest.mark.filterwarnings("ignore:quantize. found weights of zeros only")
@pytest.mark.parametrize("layer", [nn.Conv2d(4, 4, 3, bias=False), nn.Linear(6, 4, bias=False)], ids=repr)
def test_products_with_zero_weights_are_no_mismatch(layer: Any) -> None:
    """OpenVINO returns 1e-30 for them."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    nn.init.zeros_(layer.weight)
    target, batch = targets.openvino, torch.randn(2, 4, 6, 6)
    calibrated = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(nn.Sequential(layer, nn.ReLU()).eval()))
    assert qfunc.verify(target)(calibrated, [batch]).agreement.startswith("bit-exact")


def test_a_norm_of_equal_products_is_no_mismatch() -> None:
    """OpenVINO multiplies in another order; the norm divides what that changes by a standard deviation near 0."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    torch.manual_seed(0)
    modules = nn.Conv2d(8, 16, 3, padding=1), nn.LayerNorm(16), nn.Linear(16, 16)
    net = Apply(lambda x, a, norm, b: b(norm(a(x).prod(1))), *modules)
    target, x = targets.openvino, torch.randn(2, 8, 16, 16) * 1e-8
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target, (x,))(net.eval()))
    report = qfunc.verify(target)(model, [x])
    assert report.verdict.startswith("bit-exact outside 2 float units: "), report
    assert any(row.largest_lsb > 1 for row in report.rows), report


def test_ops_without_a_rule_are_listed() -> None:
    target, x = targets.onnxruntime, torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    grid = torch.rand(2, 8, 8, 2, generator=torch.Generator().manual_seed(2)) * 2 - 1
    net = Apply(lambda x, a, b: b(F.grid_sample(a(x), grid, align_corners=False)), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    report = qfunc.verify(target)(model, [x])
    assert report.unbounded == (("grid_sample", "no rule bounds the error of grid_sample"),)


@pytest.mark.parametrize("name", ["std", "var"])
def test_the_deviation_of_nearly_equal_values_is_within_its_bound(name: str) -> None:
    """A root of a variance near 0 has an error of the root of an ulp: 1e-7 where the simulation finds 0."""
    pytest.importorskip("onnxruntime")
    target, g = targets.onnxruntime, torch.Generator().manual_seed(1)
    net = Apply(lambda x, fc: getattr(fc(x.reshape(x.shape[0], -1, 1)), name)(1), nn.Linear(1, 4))
    batches = [torch.randn(4, 4, 8, generator=g) * 1e-8 for _ in range(2)]
    report = qfunc.verify(target)(qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net.eval())), batches)
    assert report.agreement.startswith("bit-exact"), report
    assert report.unbounded == ()


@pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="PyTorch's mean has vectors of four numbers")
@pytest.mark.parametrize("sizes", [(2, 3, 1), (1, 2)])
def test_a_unit_after_a_float_unit_is_emulated_on_what_the_runtime_shows(
    sizes: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    """The mean of a norm's result is 0 and its noise: only that of the runtime's own norm is the runtime's."""
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(1)  # with several, PyTorch sums a mean in parts
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(8, 8), nn.AdaptiveAvgPool2d(1)).eval()
    batches = [torch.randn(n, 8, 7, 8) for n in sizes]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.ncnn)(net))
    report = qfunc.verify(targets.ncnn)(model, batches)
    assert sum(row.elements for row in report.of("float")) == sum(sizes) * 8 * 7 * 8  # the norm of every batch has a bound
    assert [(row.name, row.mismatches) for row in report.of("alone") if row.name == "output 0"] == [("output 0", 0)]
    assert report.mismatches
    assert report.agreement.startswith("bit-exact outside 1 float unit")


class Grid(nn.Module):
    """A linear layer beside constants: of positions, of equal numbers, and of a function of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(6, device=x.device).unsqueeze(0).float()
        return self.a(x) + places, self.a(x) * places.cos() + torch.ones_like(x) * 0.5 + torch.full((6,), 0.25)


@pytest.mark.parametrize("name", [*PACKAGES, "tosa"])
def test_constants_are_no_float_units(name: str) -> None:
    package = {**PACKAGES, "tosa": "tosa_reference_model"}[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package.replace('ai_edge_', 'ai-edge-').replace('tosa_reference_model', 'tosa-tools')} is not installed")
    target, batches = getattr(targets, name), [torch.randn(3, 6, generator=torch.Generator().manual_seed(1))]
    torch.manual_seed(0)
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Grid().eval()))
    report = qfunc.verify(target)(model, batches)
    units = dict(report.float_units)
    cos = [] if name == "onnxruntime" else ["a constant, computed in float"]  # ONNX Runtime's cosine is known
    assert [reason for path, reason in units.items() if path == "cos"] == cos
    assert not {"arange", "unsqueeze", "float", "ones_like", "full"} & {*units, *dict(report.unbounded)}


@pytest.mark.parametrize("name", ["onnxruntime", "litert", "executorch_xnnpack"])
def test_a_float_unit_that_only_moves_decoded_codes_is_within_its_bound(name: str) -> None:
    """The runtime decodes the codes in float32, which is not the float64 product."""
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    target = getattr(targets, name)
    model = Apply(lambda x: F.pixel_unshuffle(torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2]], 1), 2))
    x = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    report = qfunc.verify(target)(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model)), [x])
    assert report.verdict.startswith("bit-exact")


@pytest.mark.parametrize("name", [n for n in PACKAGES if n.startswith("litert")])
def test_a_norm_of_equal_values_is_bounded_as_a_module_too(name: str) -> None:
    # The norm of equal values is the rounding of their mean, times 316; its codes have a step of about that.
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.Conv2d(8, 4, 1)).eval()
    target, batches = getattr(targets, name), [torch.zeros(n, 3, 7, 8) for n in (2, 2, 3)]
    report = qfunc.verify(target)(qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target)(net)), batches[1:])
    assert report.unbounded == ()
    assert report.agreement.startswith("bit-exact")  # with some orders of sums no value differs


def test_an_infinity_is_no_deviation_and_hides_none() -> None:
    """log(0): the runtime has the same infinity, and the bound of the other elements stays finite."""
    pytest.importorskip("onnxruntime")
    target, linear = targets.onnxruntime_nbits(4, 32), nn.Linear(4, 4)
    torch.nn.init.eye_(linear.weight)
    model, x = nn.Sequential(linear, Apply(lambda y: torch.log(torch.relu(y)))), torch.tensor([[-9.0, -5.0, 1.0, 3.0]])
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))

    def moved(by: float) -> Any:
        return lambda artifact, inputs: [torch.as_tensor(target.runtime.runner.run(artifact, inputs)[0]) + by]

    for by, mismatches in ((0.0, 0), (0.01, 2)):
        (row,) = qfunc.verify(target, moved(by))(calibrated, [x]).of("float")
        assert (row.elements, row.mismatches) == (4, mismatches)


EXTREMES: dict[str, Any] = {
    "sqrt below 0": (torch.sqrt, [-1.0, 1.0, 2.0]),
    "log below 0": (torch.log, [-1.0, 1.0, 2.0]),
    "exp beyond float32": (torch.exp, [0.0, 1.0, 80.0, 95.0, 100.0]),
    "exp to subnormals": (torch.exp, torch.linspace(-110, 0, 300).tolist()),
    "tan near its poles": (lambda y: torch.tan(1.5 * y), torch.linspace(-3.0, 3.0, 3001).tolist()),
    "log of a difference near 0": (lambda y: torch.log(1 - y.sigmoid()), torch.linspace(-5, 18, 300).tolist()),
    "masked softmax": (lambda y: masked(y).softmax(-1), torch.linspace(-3, 3, 16).tolist()),
    "masked log_softmax": (lambda y: masked(y).log_softmax(-1), torch.linspace(-3, 3, 16).tolist()),
    "masked logsumexp": (lambda y: masked(y).logsumexp(-1), torch.linspace(-3, 3, 16).tolist()),
    "masked attention": (lambda y: masked(y).softmax(-1) @ masked(y).softmax(-1), torch.linspace(-3, 3, 16).tolist()),
}


@frozen
class Larger:
    """A runner whose outputs are a hundredth too large; its view is the other runner's view."""

    runner: Any

    def run(self, artifact: Any, inputs: Any) -> Any:
        return [torch.as_tensor(y) * 1.01 for y in self.runner.run(artifact, inputs)]

    def inside(self, artifact: Any) -> Any:
        return LargerView(self.runner.inside(artifact))


class LargerView:
    """The view of `Larger`."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def run(self, inputs: Any) -> Any:
        outputs, codes = self.view.run(inputs)
        return [torch.as_tensor(y) * 1.01 for y in outputs], codes


def masked(y: Tensor) -> Tensor:
    """Return rows of four without what follows each place."""
    return y.view(y.shape[0], 1, 4, 4).masked_fill(torch.ones(4, 4).tril() == 0, float("-inf"))


@pytest.mark.parametrize("case", EXTREMES)
@pytest.mark.parametrize("name", ["onnxruntime", "litert", "openvino"])
def test_the_ends_of_a_domain_are_no_mismatch_and_hide_none(name: str, case: str) -> None:
    """NaN, infinities and poles: what float32 allows is within its bound, and a hundredth more is not."""
    function, values = EXTREMES[case]
    target = getattr(targets, name)
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    if (name, case) == ("litert", "tan near its poles"):
        return  # it has no tan
    layer = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model, x = nn.Sequential(layer, Apply(function)).eval(), torch.tensor(values).view(1, 1, 1, -1)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    report = qfunc.verify(target, latency=False)(calibrated, [x])
    assert "mismatch" not in report.verdict, report

    found = qfunc.verify(target, Larger(target.runtime.runner), latency=False)(calibrated, [x])
    wide = case in ("exp beyond float32", "tan near its poles")  # a bound has 2^-22 of the largest element
    assert wide or "mismatch" in found.verdict, found


@pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")
@pytest.mark.parametrize("channels", [1, 2, 3, 16])
def test_winograd_s_transforms_are_within_the_bound_of_a_convolution(channels: int) -> None:
    """Few channels beside 12 or more are where they deviate most; a direct sum stays 10 times below."""
    target, g = edit.skip(edit.name("1"))(targets.ncnn), torch.Generator().manual_seed(channels)
    net = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, 16, 3, padding=1))
    sparse = torch.randn(2, channels, 32, 32, generator=g) * (torch.rand(2, channels, 32, 32, generator=g) < 0.05)
    batches = [torch.randn(2, channels, 32, 32, generator=g), sparse]
    report = qfunc.verify(target)(qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net.eval())), batches)
    assert report.agreement.startswith("bit-exact"), report
    assert any(0.001 < row.largest_lsb < 1 for row in report.of("float"))


def test_sizes_of_what_the_runtime_does_not_show_are_known() -> None:
    """Positions beside a pool of real values that OpenVINO does not show: argmax of equal entries is within its bound."""
    pytest.importorskip("openvino")

    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            pooled = F.avg_pool2d(self.conv(x), (2, 3), 2, padding=1, count_include_pad=False)[:, [0, 0]]
            height, width = pooled.shape[-2:]
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            places = torch.stack([rows, columns], 0).type_as(pooled).unsqueeze(0).expand(pooled.shape[0], -1, -1, -1)
            both = torch.cat([pooled, places], 1)
            wide = F.interpolate(both, size=(both.shape[2] * 2, both.shape[3] * 2), mode="bilinear")
            return wide, torch.argmax(wide, -1)

    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    report = qfunc.verify(targets.openvino, latency=False)(
        qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.openvino)(Places().eval())), [x]
    )
    assert "interpolate" not in dict(report.unbounded)
    assert report.agreement.startswith("bit-exact"), report


@pytest.mark.parametrize("name", ["litert", "executorch_xnnpack"])
def test_erf_near_zero_is_within_its_bound(name: str) -> None:
    """It is computed from 1 - p(t) exp(-x^2), to within 2e-7, however small it is."""
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    target, x = getattr(targets, name), 1e-3 * torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Conv2d(3, 8, 1), Apply(torch.erf)).eval()
    with torch.no_grad():
        model[0].bias.copy_(torch.linspace(-0.04, 0.04, 8))
    report = qfunc.verify(target, latency=False)(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model)), [x])
    assert report.agreement.startswith("bit-exact"), report
