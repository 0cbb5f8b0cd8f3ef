"""The processors for which runtimes have kernels of their own, by what decides their arithmetic."""

from __future__ import annotations

import difflib
from typing import Any

from attrs import field, frozen

from qfunc.errors import SpecError
from qfunc.specs._check import as_tuple, refuse, text, tuple_of
from qfunc.specs._values import short

FEATURES = {
    "x86-64": ("sse4", "avx2", "avxvnni", "vnni"),
    "arm64": ("dotprod", "i8mm"),
    "wasm": ("simd",),
}
"""What chooses kernels, by architecture; a later feature comes with the earlier ones."""


@frozen(repr=False)
class Cpu:
    """A processor: an architecture, and those of its features by which runtimes choose kernels.

    `str` is its name: the architecture, and the last feature.

    Args:
        architecture: "x86-64", "arm64" or "wasm"; or the name of another processor, which has no features.
        features: In the order of `FEATURES`: vectors of 128 bits (`sse4`, `simd`), of 256 with fused multiply-adds (`avx2`);
            sums of four products (`dotprod`; in vectors of 256 bits `avxvnni`, of 512 `vnni`), matrix products (`i8mm`).
    Raises:
        SpecError: a feature that the architecture does not have, or one without those before it.

    >>> str(Cpu("arm64", "dotprod")), str(Cpu("Hexagon DSP")), arm64_dotprod
    ('arm64-dotprod', 'Hexagon DSP', Cpu('arm64', features='dotprod'))
    """

    architecture: str = field(validator=text())
    features: tuple[str, ...] = field(default=(), converter=as_tuple, validator=tuple_of(str))

    def __attrs_post_init__(self) -> None:
        known = FEATURES.get(self.architecture, ())
        if self.features != known[: len(self.features)]:
            wanted = f"the first of {', '.join(map(repr, known))}" if known else "no features"
            raise refuse(self, "features", self.features, wanted, "Name each feature after those that come with it.")

    def __str__(self) -> str:
        return "-".join((self.architecture, *self.features[-1:]))

    def __repr__(self) -> str:
        held = self.features[0] if len(self.features) == 1 else self.features
        return f"Cpu({self.architecture!r}{f', features={held!r}' if held else ''})"


x86_64_sse4 = Cpu("x86-64", FEATURES["x86-64"][:1])
x86_64_avx2 = Cpu("x86-64", FEATURES["x86-64"][:2])
x86_64_avxvnni = Cpu("x86-64", FEATURES["x86-64"][:3])
x86_64_vnni = Cpu("x86-64", FEATURES["x86-64"])
arm64 = Cpu("arm64")
arm64_dotprod = Cpu("arm64", FEATURES["arm64"][:1])
arm64_i8mm = Cpu("arm64", FEATURES["arm64"])
wasm_simd = Cpu("wasm", FEATURES["wasm"])

EVERY = (x86_64_vnni, x86_64_avxvnni, x86_64_avx2, x86_64_sse4, arm64, arm64_dotprod, arm64_i8mm, wasm_simd)
"""The processors with names here."""


def named(name: str) -> Cpu:
    """Return the processor of a name.

    Raises:
        SpecError: none of `EVERY` has this name.

    >>> named("x86-64-avx2").features
    ('sse4', 'avx2')
    """
    known = {str(cpu): cpu for cpu in EVERY}
    if name not in known:
        near = difflib.get_close_matches(str(name), known, 1)
        do = f"Write {near[0]!r}." if near else "Choose one of them."
        raise SpecError(where="cpus.named", found=short(name), wanted="one of " + ", ".join(known), do=do)
    return known[name]


def of_text(value: Any) -> Any:
    """Return the processor that a text describes, "x86-64 VNNI" or the name of a chip, None for ""; other values as they are.

    >>> of_text("x86-64 VNNI") == x86_64_vnni, of_text("NVIDIA GPU"), of_text("")
    (True, Cpu('NVIDIA GPU'), None)
    """
    if not isinstance(value, str):
        return value
    names = {str(cpu): cpu for cpu in EVERY}
    return names.get(value.lower().replace(" ", "-")) or (Cpu(value) if value else None)


__all__ = [
    "EVERY", "FEATURES", "Cpu", "arm64", "arm64_dotprod", "arm64_i8mm", "named", "of_text", "wasm_simd", "x86_64_avx2",
    "x86_64_avxvnni", "x86_64_sse4", "x86_64_vnni",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
