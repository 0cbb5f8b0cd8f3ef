"""LiteRT: the file read back by another reader, and every op and whole networks against its three kernel sets."""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Everything, FixedQParams, SumShifted, edit
from qfunc.targets.litert.builder import schema
from qfunc.targets.runtimes import LiteRtRunner
from tests.conformance.modules import Apply
from tests.on_integers import on_integers

INSTALLED = importlib.util.find_spec("ai_edge_litert") is not None
needs_litert = pytest.mark.skipif(not INSTALLED, reason="ai-edge-litert is not installed")
SETS = {"xnnpack": on_integers(targets.litert), "reference": on_integers(targets.litert_reference),
        "optimised": on_integers(targets.litert_optimised)}  # fmt: skip


class Ops(nn.Module):
    """One image through ops of every arithmetic, side by side: each tensor of codes is compared by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.group, self.deep = nn.Conv2d(6, 6, 3, 2, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(6, 12, 3, groups=6)
        self.row, self.slope, self.columns = nn.Linear(9, 5), nn.PReLU(6), nn.Linear(120, 7)
        self.register_buffer("matrix", torch.randn(9, 4, generator=torch.Generator().manual_seed(5)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 6, 8, 9] -> one tensor an op."""
        y = self.conv(x)
        z = F.relu6(self.deep(x))
        return (
            F.relu(self.group(x)), y - F.avg_pool2d(x, 2, 2, ceil_mode=True)[..., :5], x + x[..., :1], x * self.slope(x), z,
            self.row(x), x @ self.matrix, x @ x.transpose(2, 3), self.columns(y.flatten(1)), x.mean((2, 3)), x.mean(1),
            F.adaptive_avg_pool2d(z, 1), F.avg_pool2d(x, 3, 2, 1), F.leaky_relu(x, 0.3), F.hardswish(x), torch.tanh(x),
            torch.cat([torch.sigmoid(x), x], 1)[:, 1::2], F.max_pool2d(y, 3, 2, 1), F.interpolate(y, scale_factor=2),
            F.interpolate(x, size=(11, 6), mode="bilinear"),
            F.interpolate(x, size=(5, 12), mode="bilinear", align_corners=True),
            F.conv2d(F.pad(y, (1, 0, 2, 1)), torch.ones(1, 6, 2, 2)), torch.clamp(x, -0.7, 0.9),
        )  # fmt: skip


def _calibrated(model: nn.Module, target, *shape: int, seed: int = 3):
    torch.manual_seed(seed)
    batches = [torch.randn(shape) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model.eval())), [*batches, 2 * batches[0]]


def _moved(model, seed: int) -> None:
    # Other scales, powers of two among them, and zero points at the ends; tensors that shared theirs still do.
    choose, new = random.Random(seed), dict[tuple[float, int], tuple[float, int]]()
    for seat in quantizer_nodes(model):
        module = seat.module
        if module.site.constant or isinstance(module.site.value, FixedQParams):
            continue
        old = float(module.scale), int(module.zero_point)
        exact = 2.0 ** round(np.log2(old[0])) if choose.random() < 0.5 else old[0] * np.exp(choose.uniform(-0.7, 0.7))
        zero = choose.choice((-128, 127, 0, -1, choose.randint(-128, 127)))
        scale, zero = new.setdefault(old, (float(np.float32(exact)), zero))
        module.scale.fill_(scale)
        module.zero_point.fill_(zero)


def _refusal(model: nn.Module, target, *shape: int) -> str:
    # What `deploy` says of it.
    calibrated, _ = _calibrated(model, target, *shape)
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(calibrated)
    return str(caught.value)


@needs_litert
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kernels", SETS)
def test_every_op_is_what_the_kernels_compute(kernels, seed):
    target = SETS[kernels]
    torch.manual_seed(7)
    model, batches = _calibrated(Ops(), target, 2, 6, 8, 9, seed=seed)
    _moved(model, seed)
    report = qfunc.verify(target, LiteRtRunner(kernels, threads=1))(model, batches)
    assert report.agreement.startswith("bit-exact: "), report
    assert dict(report.float_units) == {"sigmoid": "OutputQParams does not hold"}  # its codes are those of a concat


@needs_litert
@pytest.mark.parametrize("kernels", SETS)
def test_softmax_is_what_the_kernels_compute(kernels):
    model, batches = _calibrated(nn.Sequential(nn.Softmax(-1)), SETS[kernels], 50, 3, 17)
    report = qfunc.verify(SETS[kernels], LiteRtRunner(kernels, threads=1))(model, [3 * b for b in batches])
    assert report.agreement.startswith("bit-exact: "), report


class Residual(nn.Module):
    """Convolutions with batch norm, a residual, a depthwise one, two branches joined, and a classifier."""

    def __init__(self, curve: Callable[[], nn.Module] = nn.Hardswish) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), curve(), nn.Conv2d(8, 8, 1))
        self.left, self.right, self.head = nn.Conv2d(8, 5, 1), nn.Conv2d(8, 6, 3, padding=1), nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, 4]."""
        x = self.stem(x)
        x = F.relu(x + self.deep(x))
        x = torch.cat([self.left(x), F.max_pool2d(self.right(x), 3, 1, 1)], 1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


@needs_litert
@pytest.mark.parametrize("kernels", SETS)
def test_a_network_is_what_the_kernels_compute(kernels):
    model, batches = _calibrated(Residual(), SETS[kernels], 2, 3, 15, 14)
    report = qfunc.verify(SETS[kernels], LiteRtRunner(kernels, threads=1))(model, [*batches, batches[0][:1]])
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units


@needs_litert
def test_the_file_holds_the_models_qparams_and_codes():
    from ai_edge_litert.schema_py_generated import Model, TensorType

    target = targets.litert
    model, _ = _calibrated(nn.Sequential(nn.Conv2d(3, 5, (3, 2)), nn.Flatten(), nn.Linear(5 * 4 * 6, 4)), target, 2, 3, 6, 7)
    artifact = qfunc.deploy(target)(model)
    assert artifact.files == qfunc.deploy(target)(model).files
    read = Model.GetRootAs(artifact.files["model.tflite"], 0)
    graph = read.Subgraphs(0)
    tensors = {graph.Tensors(i).Name().decode(): graph.Tensors(i) for i in range(graph.TensorsLength())}
    named = {site["name"]: site for site in artifact.report["tensors"]}

    def same(name: str, site: str) -> Tensor:
        held = tensors[name].Quantization()
        assert held.ScaleAsNumpy().tolist() == named[site]["scale"], name
        assert held.ZeroPointAsNumpy().tolist() == named[site]["zero_point"], name
        data = read.Buffers(tensors[name].Buffer()).DataAsNumpy()
        dtype = np.int32 if tensors[name].Type() == TensorType.INT32 else np.int8
        if not isinstance(data, np.ndarray):  # no constant
            return torch.zeros(0)
        return torch.from_numpy(data.view(dtype).reshape(tensors[name].ShapeAsNumpy()).astype(np.int64))

    same("input.codes", "input")
    same("0.codes.nhwc", "0")
    weight, column = same("0.weight", "0.weight"), same("2.weight", "2.weight")
    exact = {seat.path: seat.module for seat in quantizer_nodes(model)}
    codes, _ = exact["quantizers.0.weight"].export(model.get_parameter("0.weight"))
    assert torch.equal(weight.permute(0, 3, 1, 2), codes.long())
    codes, _ = exact["quantizers.2.weight"].export(model.get_parameter("2.weight"))
    assert torch.equal(column.reshape(4, 4, 6, 5).permute(0, 3, 1, 2).flatten(1), codes.long())
    assert same("0.bias", "0.bias").shape == (5,)
    assert [o.BuiltinCode() for o in map(read.OperatorCodes, range(read.OperatorCodesLength()))] == [114, 39, 3, 22, 9, 6]
    assert tensors["input"].ShapeSignatureAsNumpy().tolist() == [-1, 3, 6, 7]


@needs_litert
@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), Apply(lambda x: x[[-1]])), (1, 3, 5, 4),
         "op '1.getitem': found positions along the batch, wanted positions along other axes. Select examples outside of the "
         "deployed model."),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused(make, shape, message):
    assert _refusal(make(), targets.litert, *shape) == message


FORM = "TensorFlow Lite builtin_ops.h and the reference kernels of LiteRT: no such operator, or not in that form. "


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Conv3d(2, 3, 2),
         "op 'conv3d': found the kind 'conv' with spatial=3, wanted an op that it runs: TensorFlow Lite operators: "
         "convolutions and pools take tensors of four axes. Slide along one or two axes."),
        (nn.ConvTranspose2d(4, 4, 2, dilation=2),
         "op 'conv_transpose2d': found the kind 'conv_transpose' with dilation=(2, 2), wanted an op that it runs: "
         f"{FORM}Resize the image and convolve it."),
        (nn.Upsample((7, 9), mode="bicubic"),
         "op 'interpolate': found the kind 'resize' with mode='bicubic', wanted an op that TfliteLowering() writes: TensorFlow "
         "Lite builtin_ops.h: no such operator on real values, or not in that form. Use mode='nearest' or mode='bilinear'. "
         "To simulate it without a file, use attrs.evolve(target, lowering=None)."),
        (nn.Sequential(nn.Conv2d(3, 4, 1), Apply(lambda x: x.flip(0))),
         "op '1.flip': found the kind 'flip' with mixes=True, wanted an op that TfliteLowering() writes: qfunc writes slices "
         "of the other axes. Select examples outside of the deployed model. "
         "To simulate it without a file, use attrs.evolve(target, lowering=None)."),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_no_kernel_runs_is_refused_at_once(model, message):
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(targets.litert)(model)
    assert str(caught.value) == f"target 'litert', {message}"


class Words(nn.Module):
    """Indices to a table, a norm, and curves that LiteRT computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.norm, self.last = nn.Embedding(11, 6), nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        """[N, L] -> [N, L, 5]."""
        return self.last(F.hardsigmoid(self.norm(F.silu(self.first(self.table(ids))))))


@needs_litert
@pytest.mark.parametrize("kernels", SETS)
def test_what_has_no_codes_is_computed_in_float(kernels):
    torch.manual_seed(0)
    ids = torch.randint(0, 11, (3, 5))
    model = qfunc.calibrate([ids], progress=False)(qfunc.quantize(SETS[kernels])(Words().eval()))
    report = qfunc.verify(SETS[kernels], LiteRtRunner(kernels, threads=1))(model, [ids.flip(0), ids[:1]])
    # Norms, logistic functions and sums of float32 differ in their last bits: one code of the layers behind may flip.
    assert report.mismatches <= 2, report
    assert {name for name, _ in report.float_units} == {"table", "norm", "hardsigmoid"}


class Celu(nn.Module):
    """The codes of a convolution, and their CELU, which has no quantizer."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.conv, self.alpha = nn.Conv2d(3, 5, 1), alpha

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, H, W] -> [N, 5, H, W] twice."""
        y = self.conv(x)
        return y, F.celu(y, self.alpha)


@needs_litert
@pytest.mark.parametrize("alpha", [1.0, 0.3, 7])
@pytest.mark.parametrize("kernels", SETS)
def test_celu_is_float_and_exact_to_four_roundings(kernels, alpha):
    target = SETS[kernels]
    model, batches = _calibrated(Celu(alpha), target, 2, 3, 8, 9)
    y, z = LiteRtRunner(kernels, threads=1).run(qfunc.deploy(target)(model), [batches[0]])
    assert np.array_equal(z[y > 0], y[y > 0])
    found, x = z[y <= 0], y[y <= 0].astype(np.float64)
    assert found.size > 99
    # Two of the argument of exp, one of exp, one of the product with alpha, each of a number up to 1.
    assert np.abs(found - alpha * np.expm1(x / alpha)).max() <= alpha * 2.0**-22


@needs_litert
@pytest.mark.parametrize("alpha", [1.0, 0.3, 7, -0.7])
@pytest.mark.parametrize("kernels", SETS)
def test_celu_between_codes_is_what_the_kernels_compute(kernels, alpha):
    model, batches = _calibrated(Residual(lambda: nn.CELU(alpha)), SETS[kernels], 2, 3, 15, 14)
    report = qfunc.verify(SETS[kernels], LiteRtRunner(kernels, threads=1))(model, [*batches, batches[0][:1]])
    assert report.mismatches <= 2, report  # as above
    assert {name for name, _ in report.float_units} == {"deep.2"}


def test_one_file_serves_three_kernel_sets():
    rules = [{r.select for r in t.rules} for t in SETS.values()]
    assert rules[1] == rules[2]  # the default kernels leave products of pairs in float
    half_even = edit.activations(rounding="half_even", division=False)
    assert targets.litert_optimised.rules == half_even(targets.litert_reference).rules
    assert all(
        r.output.scheme.rounding == "half_away" for r in targets.litert_reference.rules if isinstance(r.output, FixedQParams)
    )
    assert len({t.kernels for t in SETS.values()}) == 3
    assert {repr(t.lowering) for t in SETS.values()} == {"TfliteLowering()"}


class Sum(nn.Module):
    """Two inputs."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Their sum."""
        return a + b


BY_VECTORS = SumShifted(bits=16, lanes=16)
# Ranges of the inputs, and codes less zero points, at which rounding an input twice falls beside the tie of the sum.
TWICE = (
    ((-1.365120269618666, 2.9727369062196836), (-0.8742194439071596, 0.3623645796417788), 140, -2),
    ((-3.1483123077937067, 2.5074499086722257), (-0.46421793465331007, 0.3188869359590215), -96, -133),
)


@needs_litert
@pytest.mark.parametrize(("first", "second", "a", "b"), TWICE)
def test_whole_vectors_of_a_sum_round_each_input_once(first, second, a, b) -> None:
    right, wrong = targets.litert_optimised, dict[tuple[int, ...], int]()
    each = (evolve(k, arithmetic=evolve(k.arithmetic, lanes=None)) if k.arithmetic == BY_VECTORS else k for k in right.kernels)
    without = evolve(right, kernels=tuple(each))
    for one, other in (
        ((40,), (40,)), ((2, 17), (1, 17)), ((3, 4, 24), (3, 1, 24)), ((2, 3, 20), (20,)), ((1, 40), (2, 40)),
        ((2, 3, 1, 18), (18,)), ((2, 40), (2, 1)), ((2, 3, 24), (2, 3, 1)), ((2, 3, 5, 20), (1, 3, 1, 20)),
        ((2, 3, 5, 20), (2, 1, 5, 1)), ((9,), (9,)),
    ):  # fmt: skip
        few = [torch.tensor([*r, 0.0]).view(*[1] * (len(s) - 1), 3) for r, s in ((first, one), (second, other))]
        for target in (right, without):
            model = qfunc.calibrate([tuple(few)], progress=False)(qfunc.quantize(target)(Sum()))
            scales = {s.tensor: s.module.qparams().scale for s in quantizer_nodes(model)}
            given = torch.full(one, float(a * scales["a"])), torch.full(other, float(b * scales["b"]))
            wrong[target.kernels == right.kernels, *one, *other] = qfunc.verify(target)(model, [given]).mismatches
    assert [bool(n) for n in wrong.values()] == [False, True] * 6 + [False, False] * 5


@needs_litert
def test_every_tensor_of_the_file_is_read_or_written() -> None:
    """A unit that stays float has its weights once, in the layout of its operator."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(8 * 36, 5)]
    model = nn.Sequential(*layers).eval()
    x = torch.randn(2, 3, 10, 10)
    for target in (targets.litert, edit.skip(Everything())(targets.litert), edit.skip(edit.name("0"))(targets.litert)):
        calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
        file = qfunc.deploy(target)(calibrated).files["model.tflite"]
        graph = schema().ModelT.InitFromPackedBuf(file, 0).subgraphs[0]
        ends = [*graph.inputs, *graph.outputs]
        used = {int(i) for o in graph.operators for i in (*o.inputs, *o.outputs)} | {int(i) for i in ends}
        assert [t.name.decode() for i, t in enumerate(graph.tensors) if i not in used] == []
        assert not [t.name for t in graph.tensors if t.name.endswith(b"_1")]


class Filled(nn.Module):
    """A linear layer whose values an integer mask replaces."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.linear, self.number = nn.Linear(6, 6), number

    def forward(self, x: Tensor, drop: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 6], [N, 6] -> the values with the number where the mask is not 0, and where it is 0."""
        y = self.linear(x)
        return y.masked_fill(drop.bool(), self.number), torch.where(drop.bool(), y, self.number)


@needs_litert
@pytest.mark.parametrize("number", [0.0, -1.5])
def test_a_mask_of_integers_chooses_the_number_or_the_value(number):
    target, batches = targets.litert, [(torch.randn(4, 6), torch.randint(0, 2, (4, 6))) for _ in range(2)]
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Filled(number).eval()))
    report = qfunc.verify(target)(calibrated, batches)
    assert report.agreement.startswith("bit-exact: "), report


def test_a_softmax_of_steps_that_the_reference_kernel_does_not_take_is_refused():
    class Tiny(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x + x, -1)

    target, batches = targets.litert_reference, [torch.randn(4, 6) * 1e-9]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Tiny()))
    assert qfunc.emulate(target)(model)(batches[0]).isfinite().all()
    with pytest.raises(DeployError, match=r"found a scale of .*e-11, wanted more than 2\^-26. Calibrate on inputs"):
        qfunc.deploy(target)(model)


@needs_litert
def test_an_op_whose_size_alone_is_read_changes_no_verdict():
    class Zeros(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.zeros_like(x + y)

    target, batches = targets.litert, [(torch.randn(2, 4, 8), torch.randn(2, 4, 8))]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Zeros()))
    report = qfunc.verify(target)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report
