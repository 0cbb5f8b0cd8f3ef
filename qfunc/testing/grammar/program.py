"""A drawn network as a value: the statements of its Python program, which anyone can run."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from qfunc.specs import Target

IMPORTS = (
    "import math", "import torch", "import torch.nn.functional as F", "from torch import nn", "import qfunc",
    "from qfunc import specs, targets", "from qfunc.specs import edit",
)  # fmt: skip
"""The first lines of every program."""


@frozen
class Input:
    """One input of a network: its name, and the code that draws a batch of `n` examples.

    >>> Input("x", "torch.randn(n, 3, 8, 8)").name
    'x'
    """

    name: str
    code: str


@frozen
class Program:
    """A network, its inputs and options, as statements.

    Attributes:
        inputs: What `forward` takes.
        layers: Statements of `__init__`.
        steps: Statements of `forward`.
        outputs: Expressions that `forward` returns; one, or a tuple.
        changes: Statements on `model`, which give it unusual weights.
        edits: Expressions of edits of the target.
        export: True to capture by torch.export, False to trace symbolically.
        seed: The seed of weights and batches.
        factor: The factor of the last probe's inputs, as code.

    >>> print(Program((Input("x", "torch.randn(n, 3)"),), ("self.a = nn.Linear(3, 2)",), ("y = self.a(x)",), ("y",)).network())
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 2)
    <BLANKLINE>
        def forward(self, x):
            y = self.a(x)
            return y
    """

    inputs: tuple[Input, ...]
    layers: tuple[str, ...]
    steps: tuple[str, ...]
    outputs: tuple[str, ...]
    changes: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    export: bool = False
    seed: int = 0
    factor: str = "2"

    def network(self) -> str:
        """Return the text of the class."""
        names = ", ".join(("self", *(i.name for i in self.inputs)))
        lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        {s}" for s in self.layers]
        lines += ["", f"    def forward({names}):", *(f"        {s}" for s in self.steps)]
        return "\n".join((*lines, f"        return {', '.join(self.outputs)}"))

    def source(self) -> str:
        """Return the program that makes `model`, `batches` for calibration and `probes` for verification."""
        drawn = ", ".join(i.code for i in self.inputs)
        lines = [*IMPORTS, "", self.network(), "", f"torch.manual_seed({self.seed})", "model = Net().eval()"]
        lines += ["with torch.no_grad():", *(f"    {s}" for s in self.changes)] if self.changes else []
        lines += ["def inputs(n):", f"    return ({drawn},)", "batches = [inputs(2), inputs(2)]"]
        wide = f"tuple({self.factor} * v if v.is_floating_point() else v for v in inputs(1))"
        return "\n".join((*lines, f"probes = [batches[0], inputs(3), {wide}]"))

    def script(self, target: str) -> str:
        """Return the program with the lines that quantize, deploy and verify for a target, by name."""
        chosen = f"edit.pipe({', '.join((f'targets.{target}', *self.edits))})" if self.edits else f"targets.{target}"
        road = "target, batches[0]" if self.export else "target"
        ends = (
            f"target = {chosen}", f"quantized = qfunc.quantize({road})(model)",
            "calibrated = qfunc.calibrate(batches, progress=False)(quantized)", "artifact = qfunc.deploy(target)(calibrated)",
            "print(qfunc.verify(target)(calibrated, probes))",
        )  # fmt: skip
        return "\n".join((self.source(), *ends))

    def build(self) -> dict[str, Any]:
        """Run the program; return its names: `model`, `batches` and `probes`.

        Torch's generator has its former state after that.
        """
        import torch

        names: dict[str, Any] = {"__name__": "network"}
        with torch.random.fork_rng(devices=[]):
            exec(compile(self.source(), "<network>", "exec"), names)
        return names

    def with_edits(self, target: Target) -> Target:
        """Return the target with the program's edits."""
        from qfunc import specs

        names = {"specs": specs, "edit": specs.edit}
        return specs.edit.pipe(target, *(eval(code, names) for code in self.edits)) if self.edits else target
