"""Describe a chip of your own, then quantize, explain, emulate and deploy for it.

    python examples/custom_target.py

The chip is a small convolution engine without multipliers in its output stage.  All scales are powers of two, so one
shift, rounded half up, converts a sum to a code.  There are no zero points.  Tensors that cannot be negative are unsigned.
"""

from __future__ import annotations

import textwrap

import torch
from torch import nn

import qfunc
from qfunc import specs, targets
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.lowering import QdqLowering
from qfunc.specs import (
    Algorithm,
    Cases,
    ClampImplied,
    Copy,
    DerivedQParams,
    Fusion,
    FusionStep,
    Int,
    Kernel,
    NonNegative,
    Op,
    Rule,
    Runtime,
    SameQParams,
    Scale,
    Scheme,
    Shift,
    Target,
)

S8, U8, SHIFTS = Int(8), Int(8, signed=False), Scale(power_of_two=True)
ACTIVATION = Cases(
    ((NonNegative(), Scheme(U8, SHIFTS, rounding="half_up")),),
    default=Scheme(S8, SHIFTS, rounding="half_up"),
)
WEIGHTED, MOVES = Op(("conv", "linear")), Op(("max_pool", "flatten", "reshape"))

chip = Target(
    name="chip",
    rules=(Rule(WEIGHTED, input=ACTIVATION, weight=Scheme(S8, SHIFTS), bias=DerivedQParams(), output=ACTIVATION),),
    fusions=(Fusion(WEIGHTED, FusionStep(Op("relu")), integer_if=ClampImplied()),),
    kernels=(
        Kernel(WEIGHTED, Shift("half_up"), formats=(("input", (S8, U8)), ("weight", (S8,)), ("output", (S8, U8)))),
        Kernel(MOVES, Copy(), integer_if=SameQParams()),
    ),
    commuting=MOVES,
    runtime=Runtime("chip simulator", "1.0"),
    lowering=QdqLowering(),
    source="the manual of this chip, chapter 3",
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)


def main() -> None:
    """Quantize, explain, emulate and deploy one small network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)).eval()
    batches = [torch.randn(16, 3, 8, 8) for _ in range(4)]

    calibrated = qfunc.calibrate(batches)(qfunc.quantize(chip)(model))
    print(qfunc.explain(calibrated))

    with torch.inference_mode():
        wanted, simulated, exact = model(batches[0]), calibrated(batches[0]), qfunc.emulate(chip)(calibrated)(batches[0])
    scale = calibrated.get_submodule("quantizers.4.output").scale
    print(f"simulation against float: {(simulated - wanted).abs().max() / scale:.1f} LSB at most")
    print(f"emulation against simulation: {int(((exact - simulated) / scale).abs().max())} LSB at most")
    artifact = qfunc.deploy(chip)(calibrated)
    print("artifact:", ", ".join(f"{name}, {len(content):,} bytes" for name, content in sorted(artifact.files.items())))

    print("\nonnxruntime -> chip, the hardware:")
    for line in specs.diff(targets.onnxruntime, chip.with_algorithm_of(targets.onnxruntime)).splitlines():
        print(" ", textwrap.shorten(line, 118, placeholder=" ..."))


if __name__ == "__main__":
    main()
