"""Reports on what quantization did to a model: see docs/reports.md."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import edit

torch.manual_seed(0)
body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GELU())
model = nn.Sequential(*body, nn.Flatten(), nn.Linear(128, 5)).eval()
batches = [torch.randn(16, 3, 8, 8) for _ in range(4)]

target = edit.override(edit.name("3"), weights={"bits": 3})(targets.onnxruntime)
calibrated = qfunc.calibrate(batches)(qfunc.quantize(target)(model))

explanation = qfunc.explain(calibrated)
for row in explanation.floats:
    print(f"{row.op} ({row.kind}) is in float: {row.why}")

errors = qfunc.compare(batches)(calibrated)
(worst,) = errors.worst(1)
print(f"{worst.tensor} ({worst.slot}): {worst.sqnr:.0f} dB")
for row in errors.rows:
    if row.slot == "output" and row.alone is not None:
        print(f"{row.tensor}: {row.sqnr:.0f} dB, its quantizer alone {row.alone.sqnr:.0f} dB")

losses = qfunc.sensitivity(batches[:1])(calibrated)
print(f"{losses.worst(1)[0].site} costs most; {losses.ops} ops in place of {losses.naive_ops}")

without = qfunc.compare(batches)(qfunc.bypass(edit.name("3"), roles=("weight",))(calibrated))
print(f"outputs: {errors.outputs[0].sqnr:.0f} dB, without {losses.worst(1)[0].site} {without.outputs[0].sqnr:.0f} dB")

verified = qfunc.verify(target, score=lambda outputs, x: outputs[0].argmax(1) == model(x).argmax(1))(calibrated, batches)
print(f"the float network's answer in {dict(verified.scores)['simulation']:.0%} of the examples")

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
reports = {"errors": errors, "losses": losses, "verified": verified}
pages = [report.save(folder / f"{name}.html") for name, report in reports.items()]
print("pages:", ", ".join(page.name for page in pages))
