"""Small decoders, captured and quantized once for the tests of a process."""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import frozen
from torch import fx

import qfunc
from qfunc import targets
from qfunc.decoding.decoder import Decoder
from qfunc.specs import Target
from tests.decoding.decoders import SHAPES, WIDE, Small, tokens
from tests.onnxruntime_target import ONNXRUNTIME

LENGTH = 16
TARGETS: dict[str, Target] = {"static": ONNXRUNTIME, "dynamic": targets.onnxruntime_nbits(4, 32)}


@frozen(eq=False)
class Made:
    """A decoder with all that is made of it."""

    model: Small
    decoder: Decoder
    target: Target
    calibrated: fx.GraphModule
    emulated: fx.GraphModule
    artifact: Any


@cache
def decoder(name: str) -> tuple[Small, Decoder]:
    """(model, decoder) of a shape."""
    model = Small((SHAPES | WIDE)[name]).eval()
    return model, qfunc.decoder(LENGTH)(model)


@cache
def made(name: str, kind: str = "static") -> Made:
    """Calibrate with prompts of two lengths."""
    (model, small), target = decoder(name), TARGETS[kind]
    prompts = [small.inputs(tokens(4, length, length)) for length in (LENGTH, 5)]
    calibrated = qfunc.calibrate(prompts, progress=False)(qfunc.quantize(target)(small.program))
    return Made(model, small, target, calibrated, qfunc.emulate(target)(calibrated), qfunc.deploy(target)(calibrated))
