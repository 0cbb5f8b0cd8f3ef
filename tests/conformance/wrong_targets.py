"""Targets with one mistake each, as vendors make them, and the law of check_target that is named for it."""

from __future__ import annotations

import torch
from attrs import evolve, frozen

from qfunc import targets
from qfunc.functions import Fixed
from qfunc.specs import (
    Algorithm, DerivedQParams, Everything, FloatMultiplier, Fusion, FusionStep, Int, Kernel, Limit, Op, PerChannel, PerTensor,
    Refuse, Require, Rule, Scale, Scheme, SumFma, SumShifted, Target, Tie, Unknown, ZeroPoint,
)  # fmt: skip
from qfunc.specs import FixedQParams as Dictated
from qfunc.targets.runtimes import TengineLowering
from qfunc.testing.small_models import Block as Layer
from qfunc.testing.small_models import SmallNet
from tests.conformance import wrong_parts as parts
from tests.conformance.chip import Chip
from tests.onnxruntime_target import ONNXRUNTIME


def net(*layers, seed=1):
    return SmallNet(layers, seed), torch.randn((2, 3, 9, 11), generator=torch.Generator().manual_seed(2))


CHAIN = net(Layer("conv", 3, 4, 3), Layer("max_pool", kernel=3, stride=2), Layer("mean"), Layer("linear", 4, 5))
FORK = net(Layer("conv", 3, 4, 3, act="relu"), Layer("concat", 4, 4, 3), Layer("mean"), Layer("linear", 8, 5))
SUM = net(Layer("conv", 3, 4, 3), Layer("add", 4, 4, 3), Layer("mean"), Layer("linear", 4, 5))
POINT = net(Layer("conv", 3, 4), seed=2)  # its output's zero point is odd, so that adding it moves ties

U8 = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
INT16 = Scheme(Int(16))
WEIGHT = ONNXRUNTIME.rules[0].weight
DICTATED = next(r.output for r in ONNXRUNTIME.rules if isinstance(r.output, Dictated))
chip = evolve(ONNXRUNTIME, name="chip", runtime=evolve(ONNXRUNTIME.runtime, runner=None))
vitis, tensorrt, openvino = targets.vitis, targets.tensorrt, targets.openvino


@frozen
class Wrong:
    """A target made from a good one, the law that it breaks, and the model that shows it."""

    mistake: str
    law: str
    target: Target
    model: object = CHAIN
    good: Target = chip


def first(*rules, of=chip):
    return evolve(of, rules=(*rules, *of.rules))


def kernel(made, of=chip):
    return evolve(of, kernels=(made, *of.kernels))


def weights(estimator=None, function=None, of=chip):
    return evolve(of, weight=Algorithm(estimator or of.weight.estimator, function or of.weight.function))


def activations(estimator=None, function=None, of=chip):
    return evolve(of, activation=Algorithm(estimator or of.activation.estimator, function or of.activation.function))


def biases(value):
    return evolve(chip, rules=(evolve(chip.rules[0], bias=value), *chip.rules[1:]))


CUT = (("weight", 1), ("input", 1), ("output", -1))
MIXED = evolve(openvino, rules=(*openvino.rules[:2], evolve(openvino.rules[0], select=Op("concat"), weight=None)))

SPECS = (
    Wrong("a pickle that loses a field", "round_trips", weights(parts.Forgetful(512))),
    Wrong("a source without words", "sources_have_text", evolve(chip, source=("2.1",))),
    Wrong("another name for convolutions", "kinds_exist", first(Rule(Op("convolution"), input=U8))),
    Wrong(
        "a fusion of nothing", "selectors_can_match",
        evolve(chip, fusions=(Fusion(Op("conv") & ~Op("conv"), (FusionStep(Op("relu")),)),)),
    ),
    Wrong("16 bits, of which no kernel knows", "formats_fit_kernels", first(Rule(Op("conv"), input=INT16))),
    Wrong(
        "a bias derived from the scale of a float weight", "derived_biases_have_sources",
        evolve(chip, rules=(Rule(Op("conv"), input=U8, bias=DerivedQParams()), Rule(Op("linear"), input=U8, weight=WEIGHT))),
    ),
    Wrong(
        "a refusal of what the rules quantize", "refused_ops_have_no_rule",
        evolve(chip, legality=(Refuse(Op(("gelu", "add")), because="no such layer", do="Drop it."),)),
    ),
    Wrong(
        "a nearest target that cannot be emulated either", "nearest_can_be_emulated",
        evolve(tensorrt, kernels=(Kernel(Everything(), Unknown("closed", nearest="snpe")),)), good=tensorrt,
    ),
    Wrong("averages that commute", "commuting_ops_commute", evolve(chip, commuting=chip.commuting | Op("avg_pool"))),
    Wrong("a sigmoid that commutes", "commuting_ops_commute", evolve(chip, commuting=chip.commuting | Op("sigmoid"))),
)  # fmt: skip

PLACED = (
    Wrong(
        "one scale a tensor required, one a channel given", "legality_accepts_the_rules",
        evolve(chip, legality=(Require(Everything(), "weight", shared=PerTensor(), because="guide"),)),
    ),
    Wrong(
        "a tensor in two formats", "quantizes",
        evolve(first(Rule(Op("conv"), output=INT16)), kernels=()),
        net(Layer("conv", 3, 4, 3), Layer("avg_pool", kernel=3), Layer("mean"), Layer("linear", 4, 5)),
    ),
    Wrong("an estimator that fails", "calibrates", activations(parts.Failing())),
    Wrong("a scale of 0", "scales_are_allowed", activations(parts.Scaled(0.0))),
    Wrong("a scale that is NaN", "scales_are_allowed", weights(parts.Scaled(float("inf")))),
    Wrong("a scale that is no power of two", "scales_are_allowed", weights(parts.Scaled(0.75), Fixed(), of=vitis), good=vitis),
    Wrong("a zero point that is no code", "scales_are_allowed", activations(parts.HalfZeroPoint())),
    Wrong(
        "limits that exclude each other", "limits_hold",
        evolve(vitis, limits=(Limit(Op("conv"), CUT, 0, 3, "output"), Limit(Op("conv"), CUT, 20, 30, "output"))), good=vitis,
    ),
    Wrong(
        "dictated qparams that a tie overwrites", "dictated_qparams_are_exact",
        evolve(
            chip,
            rules=(Rule(Op("conv"), output=DICTATED), *chip.rules),
            ties=(Tie(Op("global_avg_pool"), ("input", "output"), "output"),),
        ),
    ),
    Wrong("a bias at the weight's scale", "biases_have_the_product_of_scales", biases(DerivedQParams(of=("weight",)))),
    Wrong("a bias at a scale of its own", "biases_have_the_product_of_scales", biases(Scheme(Int(32)))),
    Wrong(
        "scales along the input channels", "weights_scale_by_output_channel",
        evolve(first(Rule(Op(("conv", "linear")), weight=Scheme(Int(8, low=-127), Scale(PerChannel(1)))), of=tensorrt), legality=()),
        good=tensorrt,
    ),
    Wrong("tied tensors, one signed and one not", "ties_share_qparams", MIXED, FORK, openvino),
    Wrong("qparams of its own behind a move", "moved_codes_keep_qparams", first(Rule(Op("max_pool"), output=U8))),
    Wrong("no code for 0", "zero_is_exact", activations(function=parts.MidRise())),
    Wrong("exported codes that are shifted", "exported_codes_match_the_simulation", weights(function=parts.Shifted())),
    Wrong(
        "a simulation that does not clip", "exported_codes_match_the_simulation",
        activations(function=parts.Unclipped(), of=tensorrt), good=tensorrt,
    ),
    Wrong("an estimator that clips its input", "transforms_are_pure", activations(parts.Clamping(), of=tensorrt), good=tensorrt),
)  # fmt: skip

ARITHMETIC = (
    Wrong("an addition's arithmetic for convolutions", "emulates", kernel(Kernel(Op("conv"), SumFma()))),
    Wrong(
        "a sum whose inputs are rounded first", "simulation_is_within_one_code",
        kernel(Kernel(Op("add"), SumShifted(left_shift=0))), SUM,
    ),
    Wrong("ties away from zero", "emulation_matches_the_runtime", kernel(Kernel(Op("conv"), FloatMultiplier("half_away"))), POINT),
    Wrong(
        "a zero point before rounding", "emulation_matches_the_runtime",
        kernel(Kernel(Op("conv"), FloatMultiplier(zero_point="before"))), POINT,
    ),
)  # fmt: skip

ARTIFACTS = (
    Wrong("a file that cannot say the rules", "deploys", evolve(chip, lowering=TengineLowering())),
    Wrong("a lowering that edits its input", "lowering_is_pure_and_deterministic",
          evolve(chip, lowering=parts.Edited("the given model"))),
    Wrong("a random producer", "lowering_is_pure_and_deterministic", evolve(chip, lowering=parts.Edited("random"))),
    Wrong("an op that ONNX does not have", "artifact_loads", evolve(chip, lowering=parts.Edited("checker"))),
    Wrong("a range that is NaN", "artifact_loads", evolve(chip, lowering=parts.Ranges("nan"))),
    Wrong("codes that are rounded once more", "artifact_holds_the_constants", evolve(chip, lowering=parts.Edited("codes"))),
    Wrong("weights that are not the quantized ones", "artifact_holds_the_constants",
          evolve(chip, lowering=parts.Ranges("weights"))),
    Wrong("the same under other names", "artifact_computes_the_simulation",
          evolve(chip, lowering=parts.Ranges("unnamed weights"))),
    Wrong("zero points that are dropped", "artifact_computes_the_simulation",
          evolve(chip, lowering=parts.Edited("zero points"))),
    Wrong("the name of a tensor that is gone", "side_files_name_tensors", evolve(chip, lowering=parts.Ranges("one name"))),
    Wrong("ranges that are a hundredth too wide", "side_files_hold_the_qparams",
          evolve(chip, lowering=parts.Ranges("values"))),
    Wrong("ranges of the tensor behind", "side_files_hold_the_qparams", evolve(chip, lowering=parts.Ranges("another's"))),
    Wrong("names of the vendor's own", "side_files_name_tensors", evolve(chip, lowering=parts.Ranges("every name"))),
    Wrong("a line for a tensor that is gone", "side_files_name_tensors",
          evolve(chip, lowering=parts.Ranges("one name", text=True))),
    Wrong("lines with names of the vendor's own", "side_files_name_tensors",
          evolve(chip, lowering=parts.Ranges("every name", text=True))),
    Wrong("lines that are a hundredth too wide", "side_files_hold_the_qparams",
          evolve(chip, lowering=parts.Ranges("values", text=True))),
)  # fmt: skip

WRONG = (*SPECS, *PLACED, *ARITHMETIC, *ARTIFACTS)
GOOD = (
    chip, vitis, tensorrt, openvino,
    evolve(chip, name="chip with ranges", lowering=parts.Ranges()),
    evolve(chip, name="chip with ranges and notes as text", lowering=parts.Ranges(text=True)),
)  # fmt: skip
RUN = {"chip": Chip(), "chip with ranges": None}
