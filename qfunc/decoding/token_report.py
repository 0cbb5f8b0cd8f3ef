"""The report of `verify_tokens`: the tokens of the emulation and of the runtime, and the unit that tells them apart."""

from __future__ import annotations

from typing import Any

from attrs import asdict, field, frozen

from qfunc.analysis.verification_report import Report

__all__ = ["TokenDifference", "TokenReport"]


@frozen
class TokenDifference:
    """The first token that differs: its row in the prompt, its number in the answer, from 0, and both values.

    `unit` is the first tensor, in the order of execution, whose result differs where both get the inputs of the emulation,
    and `step` the first step where it does: 0 reads the prompt, k reads token k - 1.  Both are empty and -1 if no tensor
    differs on these inputs.

    >>> print(TokenDifference(0, 3, 17, 4, "layers.0.o_proj", 2))
    token 3 of row 0: 17 emulated, 4 by the runtime; layers.0.o_proj differs first, in step 2
    """

    row: int
    token: int
    emulated: int
    runtime: int
    unit: str
    step: int

    def __str__(self) -> str:
        cause = f"{self.unit} differs first, in step {self.step}" if self.unit else "no tensor differs on the same inputs"
        return f"token {self.token} of row {self.row}: {self.emulated} emulated, {self.runtime} by the runtime; {cause}"


@frozen
class TokenReport:
    """The report of `verify_tokens`.

    `emulated` and `runtime` are the tokens of each row; `report` compares the tensors of every step of the emulation, as
    `verify` does.  `first` is the first token that differs, or None.
    """

    emulated: tuple[tuple[int, ...], ...] = field(repr=False)
    runtime: tuple[tuple[int, ...], ...] = field(repr=False)
    first: TokenDifference | None
    report: Report = field(repr=False)

    @property
    def tokens(self) -> int:
        """The number of tokens compared."""
        return sum(map(len, self.emulated))

    @property
    def mismatches(self) -> int:
        """The number of tokens that differ; those after the first one of a row answer another text."""
        return sum(
            a != b for one, other in zip(self.emulated, self.runtime, strict=True) for a, b in zip(one, other, strict=True)
        )

    @property
    def verdict(self) -> str:
        """One line: the tokens that differ, the first of them, and the verdict on the tensors."""
        first = "" if self.first is None else f"; {self.first}"
        return f"{self.mismatches:,} of {self.tokens:,} tokens differ{first}; {self.report.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        own = {key: value for key, value in asdict(self).items() if key != "report"}
        return {"verdict": self.verdict, **own, "report": self.report.to_dict()}

    def __str__(self) -> str:
        """Return the verdict on the tokens, and the report of the tensors."""
        first = "" if self.first is None else f"; {self.first}"
        return f"{self.mismatches:,} of {self.tokens:,} tokens differ{first}\n{self.report}"
