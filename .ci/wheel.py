"""In an environment that holds nothing but the wheel: imports every module, then goes the whole road once.

python -I wheel.py MODULE ...
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path


def main(modules: list[str]) -> None:
    """Raises if anything is missing."""
    import torch

    import qfunc
    from qfunc import targets

    here = Path(qfunc.__file__).parent
    assert "site-packages" in here.parts, here
    assert (here / "py.typed").is_file(), "py.typed is missing"
    for name in modules:
        if not name.startswith("qfunc.testing"):  # needs the extra
            importlib.import_module(name)
    assert not {"specs", "targets"} & sys.modules.keys()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)).eval()
    batches = [torch.randn(8, 3, 8, 8)]
    calibrated = qfunc.calibrate(batches)(qfunc.quantize(targets.onnxruntime)(model))
    report = qfunc.verify(targets.onnxruntime)(calibrated, batches)
    assert report.agreement.startswith(("bit-exact", "not comparable")), report.verdict
    with tempfile.TemporaryDirectory() as folder:
        saved = qfunc.prove(targets.onnxruntime)(calibrated, batches[0]).save(Path(folder, "out"))
        names = sorted(p.name for p in saved.iterdir())
    made = ", ".join(names)
    print(f"qfunc-torch {version('qfunc-torch')}: {len(modules)} modules imported; {report.verdict}; {made}")


if __name__ == "__main__":
    main(sys.argv[1:])
