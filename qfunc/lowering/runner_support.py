"""Requirements of runners: the package of an extra, and a CPU with the kernels of the target."""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qfunc.errors import QfuncError, VerifyError, a_or_an, first_line
from qfunc.specs.cpus import FEATURES, Cpu

_X86 = ("x86_64", "AMD64")
FOURS = ("avx_vnni", "avx512_vnni")
"""Sums of four products without saturation, in AVX2's vectors and in AVX-512's."""
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_QFUNC = str(Path(__file__).parents[1]) + os.sep
_REPORTED = {
    "sse4": ("sse4_2",), "avx2": ("avx2",), "avxvnni": FOURS, "vnni": FOURS[1:], "dotprod": ("asimddp",), "i8mm": ("i8mm",),
}  # fmt: skip
"""Feature -> its names in /proc/cpuinfo, of which one suffices."""


def not_installed(module: str, package: str) -> str:
    """Return "" if a module can be imported, else the message that its package is not installed."""
    return "" if importlib.util.find_spec(module) is not None else f"the package {package} is not installed"


def files_of(artifact: Any, runner: str) -> Mapping[str, bytes]:
    """Return the files of an artifact.

    Raises:
        VerifyError: another value, such as a model or a path.
    """
    files = getattr(artifact, "files", None)
    if not isinstance(files, Mapping):
        do = "Pass the result of qfunc.deploy(target)(calibrated)."
        raise VerifyError(where=runner, found=a_or_an(type(artifact)), wanted="an artifact", do=do)
    return files


def require(missing: str, where: str, extra: str, wanted: str) -> None:
    """Raise if the package of an extra is missing.

    Raises:
        VerifyError: `missing` is not empty.
    """
    if missing:
        do = f"Install qfunc-torch[{extra}], or pass runtime=run, where run(artifact, inputs) -> outputs."
        raise VerifyError(where=where, found=missing, wanted=f"{wanted} or later", do=do)


@contextmanager
def loading(runner: str, runtime: str) -> Iterator[None]:
    """Raise what a runtime raises about a file as one error.

    Raises:
        VerifyError: the runtime does not load the file.
    """
    try:
        yield
    except QfuncError:
        raise
    except Exception as e:  # runtimes have error classes of their own, without a common base
        do = "Deploy the model again: the file is damaged, or of another version."
        raise VerifyError(where=runner, found=first_line(e), wanted=f"a file that {runtime} loads", do=do) from e


def raised(error: BaseException) -> str:
    """Return the class and message of an error, with the innermost file and line of the user's code that raised it.

    Files of Python, of installed packages and of qfunc are not the user's; if the runner is itself installed, its folder is.

    >>> raised(KeyError("model.onnx"))
    "KeyError: 'model.onnx'"
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_QFUNC)]
    own = [f for f in frames if not f.filename.startswith((*_INSTALLED, "<frozen"))]
    own = own or [f for f in frames if Path(f.filename).parent == Path(frames[0].filename).parent]
    return f"{text}, at {own[-1].filename}:{own[-1].lineno}" if own else text


def run_error(
    error: Exception, runner: Any, given: Sequence[tuple[int, ...]], deployed: Sequence[tuple[int, ...]], where: str,
    *, view: bool = False,
) -> VerifyError:  # fmt: skip
    """Return the error of a runner that fails on a batch: of the batch's shapes, if those of the artifact differ.

    Args:
        error: What the runner raised.
        runner: The runner.
        given: The shapes of the batch.
        deployed: The shapes of the artifact's inputs, of any number of examples.
        where: The step and the batch.
        view: The error is that of the view that the runner's `inside` returns.
    """
    own = type(runner).__module__.startswith("qfunc.")
    found = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    if len(given) == len(deployed) and any(a[1:] != b[1:] for a, b in zip(given, deployed, strict=True)):
        sizes = "; ".join(", ".join(map(str, ("n", *shape[1:]))) for shape in deployed)
        do = f"Give batches of the shapes of the artifact in one call: [{sizes}]. "
        do += "For other sizes, calibrate on batches of several."
        return VerifyError(where=where, found=found, wanted="inputs that the artifact takes", do=do)
    name, found = type(runner).__name__, found if own else raised(error)
    if view and not own:
        do = f"Correct the run of the view that {name}.inside returns."
        return VerifyError(where=where, found=found, wanted=f"an artifact that the view of {name} runs", do=do)
    do = f"Report the model and the version of {name}'s package: the shapes are right." if own else f"Correct {name}.run."
    return VerifyError(where=where, found=found, wanted=f"an artifact that {name} runs", do=do)


def other_kernels() -> str:
    """Return "" on x86-64, else the message that the CPU has other kernels."""
    machine = platform.machine()
    return "" if machine in _X86 else f"{machine} has other kernels than x86-64"


def this_cpu() -> Cpu:
    """Return the processor of this machine: with all features, if the system does not report them."""
    machine = platform.machine()
    architecture = "x86-64" if machine in _X86 else "arm64" if machine in ("arm64", "aarch64") else machine
    held = itertools.takewhile(lambda feature: has(*_REPORTED[feature]), FEATURES.get(architecture, ()))
    return Cpu(architecture, tuple(held))


def has(*features: str) -> bool:
    """Return True if the CPU has one of the features of /proc/cpuinfo, or if the system does not report features."""
    cpu_info = Path("/proc/cpuinfo")
    return not cpu_info.exists() or not {*features}.isdisjoint(cpu_info.read_text().split())


def uses_amx() -> bool:
    """Return True if oneDNN may use AMX here: unless the environment's ONEDNN_MAX_CPU_ISA names other instructions."""
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    return has("amx_int8") and (most in ("ALL", "DEFAULT") or "AMX" in most)


AMX = "with AMX, oneDNN has kernels that round in another order; ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI leaves them out"

SATURATES = "without VNNI the kernels saturate sums of two products to 16 bits"
"""AVX2 then adds pairs of products u8 * s8 in 16 bits.  2 * 255 * |w| <= 2^15 - 1 holds up to |w| = 64, so that weights of 7
bits are exact."""
