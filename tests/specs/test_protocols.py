"""Optional methods are declared by protocols: one that is misspelt or of another shape is an error."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest
import torch
from attrs import frozen

import qfunc
from qfunc import estimators, functions, lowering, targets
from qfunc.errors import SpecError, VerifyError
from qfunc.specs import Algorithm, FileFormat, Runtime, edit, protocols
from qfunc.specs._check import members, misfit
from qfunc.specs.protocols import (
    OPTIONAL, Estimator, FormattedLowering, Function, InspectableRunner, LearnedFunction, Library, Lowering, MergeableEstimator,
    NoiselessFunction, OnnxFunction, PartwiseLowering, RelaxedFunction, Runner, ScalableFunction,
)  # fmt: skip
from qfunc.testing import check_estimator, check_function


@frozen
class Plain:
    """A function of the required methods."""

    def init(self, qparams: Any, x: Any, scheme: Any) -> Any:
        return qparams

    def apply(self, params: Any, x: Any, scheme: Any) -> Any:
        return x

    def export(self, params: Any, x: Any, scheme: Any) -> Any:
        return x, params


@frozen
class Misspelt(Plain):
    def learnt(self, scheme: Any) -> tuple[str, ...]:
        return ("scale",)


@frozen
class Short(Plain):
    def relax(self, params: Any, x: Any) -> Any:
        return x


@frozen
class Listed(Plain):
    learned = ("scale",)


@frozen
class OtherInit(Plain):
    def init(self, qparams: Any) -> Any:
        return qparams


@frozen
class Borrowed:
    """Methods of another value, which are bound already."""

    init, apply, export = functions.Fixed().init, functions.Fixed().apply, functions.Fixed().export


@frozen
class MoreArguments(Plain):
    """An optional argument more, and helpers of other names."""

    scale: float = 1.0

    def relax(self, params: Any, x: Any, scheme: Any, noise: Any = None, more: int = 0) -> Any:
        return x

    @staticmethod
    def learned(scheme: Any) -> tuple[str, ...]:
        return ()

    def width(self, params: Any) -> Any:
        return params


@frozen
class Chip:
    def run(self, artifact: Any, inputs: Any) -> Any:
        return []

    def insides(self, artifact: Any) -> Any:
        return artifact


@frozen
class Files:
    def lower(self, program: Any) -> dict[str, bytes]:
        return {}

    @property
    def formats(self) -> FileFormat:
        return FileFormat()


@frozen
class Former:
    opset: int = 21

    def lower(self, program: Any) -> dict[str, bytes]:
        return {}


@frozen
class FormerMethod:
    format: ClassVar[FileFormat] = FileFormat()

    def lower(self, program: Any) -> dict[str, bytes]:
        return {}

    def with_names(self, files: Any, inputs: Any, outputs: Any) -> Any:
        return files


@frozen
class Merging(estimators.MinMax):
    def merge(self, a: Any) -> Any:
        return a


MESSAGES = [
    (
        lambda: Algorithm(estimators.MinMax(), Misspelt()),
        "Algorithm.function: found Misspelt() with the method learnt, "
        "wanted learned, an optional method of Function, or a name unlike it. Rename learnt.",
    ),
    (
        lambda: Algorithm(estimators.MinMax(), Short()),
        "Algorithm.function: found Short() with relax(params, x), "
        "wanted relax(params, x, scheme, noise), as RelaxedFunction declares it. Let relax take these arguments.",
    ),
    (
        lambda: Algorithm(estimators.MinMax(), Listed()),
        "Algorithm.function: found Listed() with learned, which is no method, "
        "wanted learned(scheme), as LearnedFunction declares it. Make learned a method.",
    ),
    (
        lambda: Algorithm(estimators.MinMax(), OtherInit()),
        "Algorithm.function: found OtherInit() with init(qparams), "
        "wanted init(qparams, x, scheme), as Function declares it. Let init take these arguments.",
    ),
    (
        lambda: Algorithm(Merging(), functions.Fixed()),
        "Algorithm.estimator: found Merging() with merge(a), "
        "wanted merge(a, b), as MergeableEstimator declares it. Let merge take these arguments.",
    ),
    (
        lambda: functions.Stochastic(Misspelt()),
        "Stochastic.inner: found Misspelt() with the method learnt, "
        "wanted learned, an optional method of Function, or a name unlike it. Rename learnt.",
    ),
    (
        lambda: edit.weights(function=Misspelt()),
        "SetAlgorithm.function: found Misspelt() with the method learnt, "
        "wanted learned, an optional method of Function, or a name unlike it. Rename learnt.",
    ),
    (
        lambda: Runtime("mine", runner=Chip()),
        "Runtime.runner: found Chip() with the method insides, "
        "wanted inside, an optional method of Runner, or a name unlike it. Rename insides.",
    ),
    (
        lambda: lowering.PackInt4(Files()),
        "PackInt4.lowering: found Files() with the method formats, "
        "wanted format, an optional method of Lowering, or a name unlike it. Rename formats.",
    ),
    (
        lambda: lowering.PackInt4(Former()),
        "PackInt4.lowering: found Former(opset=21) with the attribute opset, "
        "wanted a specs.FileFormat as format. Write format = FileFormat(opset=...).",
    ),
    (
        lambda: lowering.PackInt4(FormerMethod()),
        "PackInt4.lowering: found FormerMethod() with the method with_names, "
        "wanted a specs.FileFormat as format. Write format = FileFormat(names=...).",
    ),
    (
        lambda: check_function(Misspelt()),
        "testing.check_function: found a Misspelt with the method learnt, "
        "wanted learned, an optional method of Function, or a name unlike it. Rename learnt.",
    ),
    (
        lambda: check_estimator(Merging()),
        "testing.check_estimator: found a Merging with merge(a), "
        "wanted merge(a, b), as MergeableEstimator declares it. Let merge take these arguments.",
    ),
]


@pytest.mark.parametrize(("build", "message"), MESSAGES, ids=[message.split(",")[0] for _, message in MESSAGES])
def test_a_misspelt_or_misshapen_method_is_refused(build: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build()
    assert str(caught.value) == message


def test_verify_refuses_a_runner_with_a_misspelt_method() -> None:
    with pytest.raises(VerifyError) as caught:
        qfunc.verify(targets.onnxruntime, Chip())
    assert str(caught.value) == (
        "verify, runtime: found a Chip with the method insides, "
        "wanted inside, an optional method of Runner, or a name unlike it. Rename insides."
    )


@pytest.mark.parametrize("function", [Plain(), MoreArguments(), Borrowed()])
def test_more_arguments_and_other_names_are_accepted(function: Any) -> None:
    assert Algorithm(estimators.MinMax(), function).function == function


def public(module: Any, protocol: type) -> list[type]:
    """The public classes of a module that implement a protocol."""
    classes = [getattr(module, name) for name in module.__all__]
    return [c for c in classes if isinstance(c, type) and attrs.has(c) and all(hasattr(c, n) for n in members(protocol))]


@pytest.mark.parametrize(
    ("module", "protocol", "least"),
    [
        (estimators, Estimator, 12),
        (functions, Function, 10),
        (targets.runtimes, Lowering, 15),
        (targets.runtimes, Runner, 7),
        (targets.arithmetics, Library, 7),
    ],
)
def test_the_librarys_own_fit(module: Any, protocol: type, least: int) -> None:
    found = public(module, protocol)
    assert len(found) >= least
    assert [misfit(kind, protocol) for kind in found] == [None] * len(found)


def test_isinstance_tells_what_a_value_offers() -> None:
    fixed, lsq, adaround = functions.Fixed(), functions.Lsq(), functions.AdaRound()
    assert isinstance(lsq, LearnedFunction)
    assert not isinstance(fixed, LearnedFunction)
    assert isinstance(fixed, ScalableFunction)
    assert not isinstance(fixed, RelaxedFunction | OnnxFunction)
    assert isinstance(adaround, RelaxedFunction)
    assert isinstance(adaround, NoiselessFunction)
    assert isinstance(functions.QDrop(), RelaxedFunction)
    assert not isinstance(functions.QDrop(), NoiselessFunction)
    assert isinstance(estimators.MinMax(), MergeableEstimator)
    assert isinstance(lowering.QdqLowering(), FormattedLowering)
    assert isinstance(targets.runtimes.CompressedTensorsLowering(), PartwiseLowering)
    assert not isinstance(lowering.QdqLowering(), PartwiseLowering)
    assert not isinstance(targets.runtimes.TensorRtRanges(), FormattedLowering)
    assert isinstance(targets.runtimes.OnnxRuntimeRunner(), InspectableRunner)
    assert not isinstance(targets.runtimes.QnnHtpRunner(), InspectableRunner)


SUFFIXES = ("Arithmetic", "Dequantization", "Estimator", "Function", "Library", "Lowering", "Quantization", "Runner")


def test_a_misspelt_method_of_any_protocol_is_refused() -> None:
    """`OPTIONAL`, from which misspelt methods are found, has all protocols of each kind."""
    names = [name for name in protocols.__all__ if name.endswith(SUFFIXES)]
    assert sorted(names) == sorted(p.__name__ for required, optional in OPTIONAL.items() for p in (required, *optional))


def test_no_two_protocols_of_one_kind_declare_one_name() -> None:
    for required, optional in OPTIONAL.items():
        names = [name for protocol in (required, *optional) for name in members(protocol)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("function", [functions.QDrop(), functions.AdaRound(), functions.Lsq()])
def test_a_quantizer_knows_its_functions_training_value(function: Any) -> None:
    target = edit.weights(function=function)(targets.onnxruntime)
    model = qfunc.quantize(target)(torch.nn.Linear(4, 3))
    weight = next(m for m in model.modules() if getattr(getattr(m, "site", None), "name", "") == "weight")
    assert weight.relaxed == hasattr(function, "relax") == ("seed" in dict(weight.named_buffers()))
    assert weight.noisy == (weight.relaxed and getattr(function, "noisy", True))
