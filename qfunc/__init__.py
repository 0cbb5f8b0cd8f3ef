"""A chip is described once; simulation, integer emulation, the vendor's artifact and their proof follow."""

import gc as _gc
import importlib as _importlib
import os as _os
import typing as _typing

# In a checkout, specs and targets are links to the folders beside this one.  Where links are not supported, as in some
# checkouts on Windows, the folders themselves are found.
if not _os.path.isdir(_os.path.join(_os.path.dirname(__file__), "specs")):
    __path__.append(_os.path.dirname(_os.path.dirname(__file__)))

# Modules free nothing while they are imported, but each collection visits all of torch's objects: a quarter of the time.
_collects = _gc.isenabled()
_gc.disable()
try:
    from qfunc import specs  # isort: skip  # first: specs ends with the arithmetics, whose functions of codes read specs
    from qfunc import corrections, errors, estimators, functions, recipes
    from qfunc import lowering as _lowering
    from qfunc.analysis.bit_sensitivity import HessianTrace, OutputMse
    from qfunc.analysis.budgets import BitOpsBudget, LatencyBudget, SizeBudget
    from qfunc.corrections.correct_bias import correct_bias
    from qfunc.corrections.correct_bias_analytic import correct_bias_analytic
    from qfunc.corrections.equalize import equalize
    from qfunc.corrections.migration.awq import awq
    from qfunc.corrections.migration.smooth import smooth_quant
    from qfunc.corrections.rotation.rotate import rotate
    from qfunc.decoding.decoder import decoder
    from qfunc.decoding.encoder_decoder import encoder_decoder
    from qfunc.decoding.generate import generate
    from qfunc.decoding.token_check import verify_tokens
    from qfunc.diagnosis.diagnose import diagnose
    from qfunc.diagnosis.measure_placement import measure_placement
    from qfunc.frontend.capture import capture
    from qfunc.numerics import libraries as _libraries
    from qfunc.proof.prove import prove
    from qfunc.quantizers.recompute import recompute_quantized
    from qfunc.reading.read import read
    from qfunc.reconstruction.hessian.compensate import gptq
    from qfunc.reconstruction.methods import adaround, brecq, qdrop
    from qfunc.reconstruction.reconstruct import reconstruct
    from qfunc.specs.text.codec import Codec as _Codec
    from qfunc.specs.text.codec import public_classes as _public_classes
    from qfunc.streaming.states import StatesInMemory, StatesOnDisk
    from qfunc.streaming.stream import stream
    from qfunc.sweeps.sweep import sweep
    from qfunc.transforms.batch_norm import FoldBatchNorm, TrainBatchNorm, fold_batch_norm, freeze_batch_norm
    from qfunc.transforms.bypass import bypass
    from qfunc.transforms.calibrate import calibrate
    from qfunc.transforms.calibration_source import FloatPass, QuantizedPass
    from qfunc.transforms.compare import compare
    from qfunc.transforms.compose import compose
    from qfunc.transforms.deploy import deploy
    from qfunc.transforms.emulate import emulate
    from qfunc.transforms.explain import explain
    from qfunc.transforms.gradient_checkpointing import checkpoint_contexts
    from qfunc.transforms.mixed_precision import mixed_precision
    from qfunc.transforms.parameter_groups import learned_quantizers, parameter_groups
    from qfunc.transforms.quantize import quantize
    from qfunc.transforms.sensitivity import sensitivity
    from qfunc.transforms.storage.save_load import load, save
    from qfunc.transforms.storage.stored_weights import CodedWeights, FloatWeights
    from qfunc.transforms.verify import verify
finally:
    if _collects:
        _gc.enable()

if _typing.TYPE_CHECKING:
    from qfunc import lowering as lowering
    from qfunc import targets as targets
    from qfunc import testing as testing

_codec = _Codec(
    {
        **_public_classes(specs), **_public_classes(estimators, "estimators."), **_public_classes(functions, "functions."),
        **_public_classes(_lowering, "lowering."), **_public_classes(_libraries),
    },
    more=lambda: {
        **_public_classes(_importlib.import_module("qfunc.targets.runtimes"), "lowering."),
        **_public_classes(_importlib.import_module("qfunc.targets.arithmetics")),
    },
)  # fmt: skip
specs.to_json, specs.from_json = _codec.to_json, _codec.from_json

__version__ = "0.1.0"

__all__ = [
    "BitOpsBudget", "CodedWeights", "FloatPass", "FloatWeights", "FoldBatchNorm", "HessianTrace", "LatencyBudget", "OutputMse",
    "QuantizedPass", "SizeBudget", "StatesInMemory", "StatesOnDisk", "TrainBatchNorm", "adaround", "awq", "brecq", "bypass",
    "calibrate", "capture", "checkpoint_contexts", "compare", "compose", "correct_bias", "correct_bias_analytic", "corrections",
    "decoder", "deploy", "diagnose", "emulate", "encoder_decoder", "equalize", "errors", "estimators", "explain",
    "fold_batch_norm", "freeze_batch_norm", "functions", "generate", "gptq", "learned_quantizers", "load",
    "measure_placement", "mixed_precision",
    "parameter_groups", "prove", "qdrop", "quantize", "read", "recipes", "recompute_quantized", "reconstruct", "rotate", "save",
    "sensitivity", "smooth_quant", "specs", "stream", "sweep", "verify", "verify_tokens",
]  # fmt: skip

_ON_DEMAND = ("lowering", "targets", "testing")
"""Public packages that load onnx or hypothesis, and therefore only when they are used."""

if not _typing.TYPE_CHECKING:  # a checker would take any name to be an attribute

    def __getattr__(name):
        if name in corrections.__all__:  # `from qfunc import name` would replace the message of an AttributeError
            raise errors.former_name(f"qfunc.{name}", f"qfunc.corrections.{name}")
        if name not in _ON_DEMAND:
            raise AttributeError(f"module 'qfunc' has no attribute {name!r}")
        try:
            return _importlib.import_module(f"qfunc.{name}")
        except ModuleNotFoundError as error:  # qfunc.testing without its extra; hasattr and inspect expect an AttributeError
            raise AttributeError(f"module 'qfunc' cannot import {name!r}: {error}") from error


def __dir__() -> list[str]:
    return sorted((*__all__, *_ON_DEMAND))
