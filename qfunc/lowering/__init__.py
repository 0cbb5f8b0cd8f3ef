"""Lowering: from a calibrated model to the artifact that a vendor's toolchain loads."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qfunc.lowering.code_functions.operands import Coded, CodeOp
from qfunc.lowering.code_functions.runner import CodesRunner
from qfunc.lowering.combination import Combined
from qfunc.lowering.machines.processors import Browser, Node, Qemu
from qfunc.lowering.onnx.int4 import PackInt4
from qfunc.lowering.onnx.lowering import ExplicitQdqLowering, QdqLowering
from qfunc.lowering.program import Program, ProgramUnit

__all__ = [
    "Browser",
    "CodeOp",
    "Coded",
    "CodesRunner",
    "Combined",
    "ExplicitQdqLowering",
    "Node",
    "PackInt4",
    "Program",
    "ProgramUnit",
    "QdqLowering",
    "Qemu",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # a checker would take any name to be an attribute

    def __getattr__(name: str) -> Any:
        if not name.startswith("_"):
            runtimes = import_module("qfunc.targets.runtimes")  # where the classes of the chips are; these names are older
            if name in runtimes.__all__:
                return getattr(runtimes, name)
        raise AttributeError(f"module 'qfunc.lowering' has no attribute {name!r}")
