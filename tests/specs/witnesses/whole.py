"""Witnesses of what a chip refuses, of ops of the user's, of hosts and of targets as a whole."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.estimators import MinMax, Quantile
from qfunc.functions import DoReFa, Fixed
from qfunc.graph.view import QuantizedModel
from qfunc.lowering import ExplicitQdqLowering
from qfunc.placement.partition import Partition
from qfunc.specs import (
    Algorithm, Attr, Build, Cases, Copy, DerivedQParams, FileFormat, First, FloatMultiplier, Fusion, FusionStep, Host, Int,
    Kernel, Limit, NonNegative, Op, OpKind, Override, PerChannel, PerTensor, Refuse, Require, RequireSizes, RequireUnit, Rule,
    Runtime, SameQParams, Scale, Scheme, Slower, Span, Target, Tie, Trait, Unknown, cpus,
)  # fmt: skip
from qfunc.targets.arithmetics import ExpertSums
from qfunc.targets.runtimes import LlamaCppLowering
from qfunc.testing import check_target
from qfunc.transforms.verification.units import is_removable
from tests.lowering.gguf.decoders import Network, decoder, tokens
from tests.specs.witnesses.arithmetic import EXPERTS, LSTMS, Steps, SumOfExperts
from tests.specs.witnesses.witness import (
    CONV, WEIGHT, Witness, calibrated, chip, codes, drawn, files, printed, refusal, report, seeded, sizes, verdict, witness,
)  # fmt: skip

LAYER, X = seeded(nn.Conv2d(3, 4, 3)), drawn(2, 3, 5, 5)
CUT = Kernel(CONV, FloatMultiplier("floor"))


def of_legality(before: Any, net: nn.Module = LAYER, see: Any = refusal, **changes: Any) -> Witness:
    """A chip that refuses something, and what it refuses with changes."""
    return witness(chip(legality=before), before, evolve(before, **changes), net, X, see=see)


BUILT = chip(runtime=Runtime("a", cpu="arm64", builds=(Build("arm64"), Build("arm64-i8mm"))))
OTHERWISE = Build("arm64-i8mm", ((Kernel(CONV, FloatMultiplier()), CUT),))
SMALL = Runtime("a", cpu="arm64")
NO = Refuse(Op("linear"), because="the guide", do="Stop.")
SAY = Refuse(CONV, because="the guide", do="Stop.")
FORM = Require(CONV, "weight", formats=Int(8, low=-127), because="the guide")
SIZE = RequireSizes(CONV, "input", rank=Span(4, 4), because="the guide", do="Stop.")
FALSE = RequireSizes(CONV, "input", rank=Span(3, 3), because="the guide", do="Stop.")
UNIT = RequireUnit(FloatMultiplier(), because="the guide", do="Stop.")
WIDE = RequireSizes(CONV, "input", axes=((3, Span(5, 5)),), because="the guide", do="Stop.")


@fx.wrap
def stretched(x: Tensor, gain: Tensor) -> Tensor:
    """An op of the user's."""
    return x * gain


@fx.wrap
def spread(x: Tensor, gain: Tensor) -> Tensor:
    """Another one, that computes the same."""
    return x * gain


class Mine(nn.Module):
    """An op of the user's after a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = seeded(nn.Conv2d(3, 4, 1)), nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 1.5]).reshape(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return stretched(self.conv(x), self.gain)


class Alone(nn.Module):
    """The op on the input, and nothing before it."""

    def forward(self, x: Tensor) -> Tensor:
        return stretched(x, 1.0)  # type: ignore[arg-type]


def call_mine(x: Tensor) -> Tensor:
    """The op as an example."""
    return stretched(x, x)


class Twins(nn.Module):
    """Two convolutions of one tensor, whose weights have ranges of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = seeded(nn.Conv2d(3, 4, 1)), seeded(nn.Conv2d(3, 4, 1))
        self.b.weight.data *= 3

    def forward(self, x: Tensor) -> Tensor:
        a: Tensor = self.a(x)
        return a + self.b(x)


MINE_NET, TWINS = Mine(), Twins()


def removable(target: Any, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The units that a runtime may leave out, by which `verify` compares its partition."""
    partition = Partition(QuantizedModel(calibrated(target, net, inputs)), target)
    return [is_removable(partition, unit) for unit in partition.units]


def checked(target: Any, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """What `check_target` finds."""
    try:
        check_target(target, examples=1)
    except AssertionError as error:
        return str(error)
    return "nothing"


FOUR, BYTES = Scheme(Int(4)), Scheme(Int(8))
SIGNS = Cases(((NonNegative(), FOUR),), default=BYTES)
MINE = OpKind("mine", f"{__name__}.stretched", ("x", "gain"))
CHANNELS = Scheme(Int(4), Scale(PerChannel()))
SCALED = '<opset_import: ["":21], domain: "mine"> Scaled (x, g) => (y) {y = Mul(g, x)}'
OWN = chip(ops=MINE, rules=Rule(Op("mine"), input=FOUR, weight=CHANNELS, output=SIGNS))
BY_SPATIAL = chip(ops=MINE, rules=Rule(Attr("spatial", 2), input=FOUR))


def of_kind(net: nn.Module = MINE_NET, before: OpKind = MINE, see: Any = codes, **changes: Any) -> Witness:
    """An op of the user's, and the op with changes."""
    return witness(evolve(OWN, ops=before), before, evolve(before, **changes), net, X, see=see)


OVERRIDE = Override(CONV, "weight", bits=4)


def of_override(before: Override = OVERRIDE, **changes: Any) -> Witness:
    """An override, and the override with changes."""
    return witness(chip(overrides=before), before, evolve(before, **changes), LAYER, X)


def of_target(before: Any = chip(CUT), net: nn.Module = LAYER, see: Any = codes, **changes: Any) -> Witness:
    """A target, and the target with changes."""
    return Witness(before, evolve(before, **changes), net, (X,), see)


HOST = Host("the CPU", Refuse(CONV, because="the guide", do="Stop."), kernels=CUT)
HOSTED = chip(Kernel(CONV, FloatMultiplier("half_up")), host=HOST)
SECRET = Unknown("closed", nearest="onnxruntime")
HIDDEN = chip(Kernel(CONV, SECRET))
MOVED = chip(Kernel(Op("max_pool"), Copy(), integer_if=SameQParams()), rules=Rule(CONV, input=BYTES, output=BYTES))
POOLED = nn.Sequential(seeded(nn.Conv2d(3, 4, 1)), nn.MaxPool2d(1))
FUSED = chip(CUT, rules=Rule(Op(("conv", "relu")), input=FOUR, output=FOUR))
CLAMPED = nn.Sequential(seeded(nn.Conv2d(3, 4, 1)), nn.ReLU())
MILD = Slower(Op("relu"), 2, "measured")
LIGHT = Rule(Op("relu"), input=BYTES, output=BYTES, beside_integers=True)


def slow(*rows: Slower) -> Runtime:
    """A processor with a build."""
    return Runtime("a", cpu="arm64", builds=Build("arm64", slower=rows))


def of_slower(**changes: Any) -> Witness:
    """A chip that computes a relu in float, and the chip with changes of the row."""
    before = chip(rules=(LIGHT, Rule(CONV, input=BYTES)), runtime=slow(MILD))
    see = codes if "select" in changes else printed
    return Witness(before, evolve(before, runtime=slow(evolve(MILD, **changes))), CLAMPED, (X,), see)


COARSE = Algorithm(Quantile(0.5), Fixed())
FINE = Algorithm(MinMax(), Fixed())
SHIFTED = evolve(targets.vitis, lowering=None, limits=())
POSITIONS = Limit(CONV, (("weight", 1), ("input", 1), ("output", -1)), 0, 3, "weight")
SHARING = chip(rules=Rule(CONV, input=BYTES, weight=Scheme(Int(8)), output=BYTES))
BIASED = chip(rules=Rule(CONV, input=BYTES, weight=WEIGHT, bias=FOUR), bias=FINE)

DECODER = decoder("llama", blocks=1)


@frozen
class OwnFiles:
    """A lowering of the user's, whose file is the model that it receives."""

    format: FileFormat

    def lower(self, program: Any) -> Any:
        """Return the model's bytes."""
        return {"model.onnx": program.model.SerializeToString(deterministic=True)}


def of_format(target: Target = chip(), see: Any = refusal, net: Any = LAYER, x: Tensor = X, **changes: Any) -> Witness:
    """A chip whose files are the user's, and one whose files have another format."""
    old = target.lowering.format if isinstance(target.lowering, OwnFiles) else FileFormat()
    before, after = (evolve(target, lowering=OwnFiles(one)) for one in (old, evolve(old, **changes)))
    return Witness(before, after, net, (x,), see)


def other_schemes(scheme: Scheme, constant: bool) -> str:
    """Files without any scheme."""
    return "other schemes"


def named_files(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The model of an artifact with a name for the output."""
    return qfunc.deploy(target, output_names=("y",))(calibrated(target, net, inputs)).files["model.onnx"]


def of_two_sizes(target: Target, net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The files of a model that was calibrated with images of two sizes."""
    batches = [x[..., :size] for x in inputs for size in (4, 5)]
    artifact = qfunc.deploy(target)(qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net)))
    return artifact.files["model.onnx"]


WIDE_BIAS = chip(rules=Rule(CONV, input=BYTES, weight=WEIGHT, bias=DerivedQParams(Int(48)), output=BYTES))


def other_decoder(kind: str = "Q8_0", **change: Any) -> Witness:
    """A decoder of llama.cpp with another hyperparameter: the file has it, or the model's tensors do not fit."""
    before = targets.gguf(kind, DECODER)
    after = evolve(before, lowering=LlamaCppLowering(kind, evolve(DECODER, **change)))
    return Witness(before, after, Network(DECODER).eval(), (tokens(2, 5, DECODER),), files)


OTHER_DECODERS: dict[str, Any] = {
    "architecture": "qwen2", "blocks": 2, "width": 96, "inner": 64, "heads": 8, "kv_heads": 4, "head_size": 8,
    "vocabulary": 97, "context": 256, "epsilon": 1e-5, "rope_base": 1e6,
}  # fmt: skip

WITNESSES = {
    **{f"DecoderConfig.{name}": other_decoder(**{name: value}) for name, value in OTHER_DECODERS.items()},
    "DecoderConfig.tied": other_decoder("Q4_K_M", tied=True),
    "Refuse.select": of_legality(NO, select=CONV),
    "Refuse.because": of_legality(SAY, because="the manual"),
    "Refuse.do": of_legality(SAY, do="Begin."),
    "Require.select": of_legality(evolve(FORM, formats=Int(4)), select=Op("linear")),
    "Require.slots": of_legality(evolve(FORM, formats=Int(8, low=-127)), slots="input"),
    "Require.formats": of_legality(FORM, formats=(Int(4), Int(3))),
    "Require.narrower": of_legality(evolve(FORM, formats=Int(8)), narrower=False),
    "Require.zero_point": of_legality(FORM, zero_point=True),
    "Require.power_of_two": of_legality(FORM, power_of_two=True),
    "Require.shared": of_legality(FORM, shared=PerTensor()),
    "Require.because": of_legality(evolve(FORM, shared=PerTensor()), because="the manual"),
    "RequireSizes.select": of_legality(FALSE, see=sizes, select=Op("linear")),
    "RequireSizes.slots": of_legality(evolve(SIZE, rank=None, axes=((1, Span(3, 3)),)), see=sizes, slots="output"),
    "RequireSizes.rank": of_legality(SIZE, see=sizes, rank=Span(5)),
    "RequireSizes.elements": of_legality(SIZE, see=sizes, elements=Span(1, 2)),
    "RequireSizes.axes": of_legality(SIZE, see=sizes, axes=((1, Span(4)),)),
    "RequireSizes.because": of_legality(FALSE, see=sizes, because="the manual"),
    "RequireSizes.do": of_legality(FALSE, see=sizes, do="Begin."),
    "RequireUnit.unit": witness(chip(CUT, legality=UNIT), UNIT, evolve(UNIT, unit=CUT.arithmetic), LAYER, X, see=refusal),
    "RequireUnit.because": of_legality(UNIT, because="the manual"),
    "RequireUnit.do": of_legality(UNIT, do="Begin."),
    "Span.low": of_legality(evolve(WIDE, axes=((3, Span(5, 9)),)), see=sizes, axes=((3, Span(6, 9)),)),
    "Span.high": of_legality(evolve(WIDE, axes=((3, Span(1, 4)),)), see=sizes, axes=((3, Span(1)),)),
    "Span.multiple": of_legality(evolve(WIDE, axes=((3, Span(1)),)), see=sizes, axes=((3, Span(1, multiple=2)),)),
    "Host.name": witness(HOSTED, HOST, evolve(HOST, name="the DSP"), LAYER, X, see=report),
    "Host.refuses": witness(HOSTED, HOST, evolve(HOST, refuses=(NO,)), LAYER, X),
    "Host.kernels": witness(HOSTED, HOST, evolve(HOST, kernels=()), LAYER, X),
    "Unknown.reason": witness(HIDDEN, SECRET, evolve(SECRET, reason="open"), LAYER, X),
    "Unknown.nearest": witness(HIDDEN, SECRET, evolve(SECRET, nearest="tosa"), LAYER, X),
    "OpKind.kind": of_kind(kind="other"),
    "OpKind.spellings": of_kind(spellings=f"{__name__}.spread"),
    "OpKind.parameters": of_kind(parameters=("x", "weight")),
    "OpKind.behaves_like": of_kind(behaves_like="relu"),
    "OpKind.slots": of_kind(slots={"x": "input", "gain": "weight"}),
    "OpKind.weight_axis": of_kind(before=evolve(MINE, parameters=("x", "weight")), weight_axis=1),
    "OpKind.spatial": witness(BY_SPATIAL, MINE, evolve(MINE, spatial=2), MINE_NET, X),
    "OpKind.neutral": of_kind(Alone(), neutral=1.0, see=removable),
    "OpKind.traits": of_kind(traits=Trait.NON_NEGATIVE),
    "OpKind.example": witness(evolve(OWN, commuting="mine"), MINE, evolve(MINE, example=call_mine), MINE_NET, X, see=checked),
    "OpKind.onnx": witness(
        evolve(OWN, ops=evolve(MINE, onnx=SCALED), lowering=ExplicitQdqLowering()),
        evolve(MINE, onnx=SCALED),
        evolve(MINE, onnx=SCALED.replace("Mul(g, x)", "Mul(x, g)")),
        MINE_NET,
        X,
        see=files,
    ),
    "FileFormat.opset": of_format(see=files, opset=13),
    "FileFormat.one_size": of_format(see=of_two_sizes, one_size="an own file"),
    "FileFormat.bias_bits": of_format(WIDE_BIAS, bias_bits=64),
    "FileFormat.blocks": of_format(targets.executorch_8da4w(), net=nn.Linear(32, 4), blocks=True),
    "FileFormat.recurrent": of_format(LSTMS, net=seeded(Steps(8, 4)), x=drawn(3, 2, 8), recurrent=True),
    "FileFormat.parameters": of_format(see=files, parameters=True),
    "FileFormat.legality": of_format(legality=SAY),
    "FileFormat.quantizers": of_format(chip(lowering=OwnFiles(FileFormat(opset=12))), quantizers=True),
    "FileFormat.schemes": of_format(schemes=other_schemes),
    "FileFormat.experts": of_format(
        evolve(EXPERTS, lowering=OwnFiles(FileFormat(opset=21, blocks=True))),
        see=codes,
        net=seeded(SumOfExperts()),
        x=drawn(8, 32),
        experts=ExpertSums(1),
    ),
    "FileFormat.names": of_format(see=named_files, names=True),
    "Override.select": of_override(select=Op("linear") | CONV & First() & ~First()),
    "Override.role": of_override(Override(CONV, "weight", estimator=Quantile(0.5)), role="activation"),
    "Override.estimator": of_override(estimator=Quantile(0.5)),
    "Override.function": of_override(function=DoReFa()),
    "Override.bits": of_override(bits=2),
    "Algorithm.estimator": of_target(weight=Algorithm(Quantile(0.5), targets.qdq.weight.function)),
    "Algorithm.function": of_target(weight=Algorithm(targets.qdq.weight.estimator, DoReFa())),
    "Runtime.name": of_target(see=printed, runtime=evolve(targets.qdq.runtime, name="other")),
    "Runtime.version": of_target(see=printed, runtime=evolve(targets.qdq.runtime, version="1")),
    "Runtime.cpu": of_target(see=printed, runtime=evolve(targets.qdq.runtime, cpu="x86")),
    "Runtime.builds": of_target(BUILT, see=printed, runtime=evolve(BUILT.runtime, builds=())),
    "Build.cpu": of_target(BUILT, see=printed, runtime=evolve(BUILT.runtime, builds=(Build("arm64"), Build("wasm-simd")))),
    "Build.replaces": of_target(BUILT, see=printed, runtime=evolve(BUILT.runtime, builds=(Build("arm64"), OTHERWISE))),
    "Build.slower": of_target(chip(rules=(LIGHT, Rule(CONV, input=BYTES)), runtime=slow(MILD)), CLAMPED, runtime=slow()),
    "Slower.select": of_slower(select=Op("tanh")),
    "Slower.ratio": of_slower(ratio=3),
    "Slower.because": of_slower(because="timed"),
    "Cpu.architecture": of_target(chip(runtime=Runtime("a", cpu="b")), see=printed, runtime=Runtime("a", cpu="c")),
    "Cpu.features": of_target(chip(runtime=SMALL), see=printed, runtime=evolve(SMALL, cpu=cpus.arm64_dotprod)),
    "Runtime.kernels": of_target(see=printed, runtime=evolve(targets.qdq.runtime, kernels="own")),
    "Runtime.runner": of_target(
        chip(lowering=ExplicitQdqLowering()), see=verdict, runtime=evolve(targets.qdq.runtime, runner=None)
    ),
    "Target.name": of_target(see=report, name="other"),
    "Target.rules": of_target(rules=(Rule(CONV, input=FOUR), *chip().rules)),
    "Target.fusions": of_target(FUSED, CLAMPED, fusions=Fusion(CONV, (FusionStep(Op("relu")),))),
    "Target.ties": of_target(FUSED, CLAMPED, ties=Tie(Op("relu"), ("input", "output"), "output")),
    "Target.fused_readers": of_target(SHARING, TWINS, fused_readers=CONV),
    "Target.limits": of_target(SHIFTED, limits=POSITIONS),
    "Target.kernels": of_target(kernels=()),
    "Target.commuting": of_target(MOVED, POOLED, see=report, commuting="max_pool"),
    "Target.legality": of_target(see=refusal, legality=SAY),
    "Target.host": of_target(host=evolve(HOST, kernels=Kernel(CONV, FloatMultiplier("half_up")))),
    "Target.ops": of_target(OWN, MINE_NET, ops=()),
    "Target.runtime": of_target(see=printed, runtime=evolve(targets.qdq.runtime, name="other")),
    "Target.lowering": of_target(chip(lowering=ExplicitQdqLowering()), see=files, lowering=None),
    "Target.source": of_target(see=printed, source="there"),
    "Target.weight": of_target(weight=COARSE),
    "Target.activation": of_target(activation=COARSE),
    "Target.bias": of_target(BIASED, bias=COARSE),
    "Target.overrides": of_target(overrides=OVERRIDE),
}
