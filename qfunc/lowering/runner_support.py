"""What the runners of runtimes ask for: the package of an extra, and a CPU whose kernels are those of the target."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qfunc.errors import QfuncError, VerifyError, first_line


def not_installed(module: str, package: str) -> str:
    """ "" where a module can be imported, else that its package is not installed."""
    return "" if importlib.util.find_spec(module) is not None else f"the package {package} is not installed"


def require(missing: str, where: str, extra: str, wanted: str) -> None:
    """Refuses to run without the package of an extra.

    Raises:
        VerifyError: `missing` reports that it is not installed.
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


def other_kernels() -> str:
    """ "" on x86-64, else that the kernels are others."""
    machine = platform.machine()
    return "" if machine in ("x86_64", "AMD64") else f"{machine} has other kernels than x86-64"


def has(feature: str) -> bool:
    """Return True if the CPU has a feature, or if the system does not report features."""
    told = Path("/proc/cpuinfo")
    return not told.exists() or feature in told.read_text()


SATURATES = "without VNNI the kernels saturate sums of two products to 16 bits"
"""AVX2 then adds pairs of products u8 * s8 in 16 bits: 2 * 255 * |w| <= 2^15 - 1 holds up to |w| = 64, so that weights of 7
bits are exact."""

__all__ = ["SATURATES", "has", "loading", "not_installed", "other_kernels", "require"]
