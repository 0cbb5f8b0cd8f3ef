"""What became of one network on one target, and the table of many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from attrs import asdict, frozen

from qfunc.analysis.report_format import table
from qfunc.errors import QfuncError

EXACT = "exact"
FLOAT_UNITS = "exact outside float units"
INCOMPARABLE = "not comparable"
UNDEFINED = "not finite in float"
REFUSED = "refused"
WRONG_FILE = "wrong file"
MISMATCH = "mismatch"
CAPTURES_DIFFER = "captures differ"
RAW_ERROR = "raw error"
TIME_LIMIT = "time limit"
BAD = (WRONG_FILE, MISMATCH, CAPTURES_DIFFER, RAW_ERROR, TIME_LIMIT)
"""The kinds that are defects of the library."""
KINDS = (EXACT, FLOAT_UNITS, INCOMPARABLE, UNDEFINED, REFUSED, *BAD)
"""Every kind, in the order of the table."""
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBERS = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_ARTICLES = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?|'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)")


@frozen
class Outcome:
    """The outcome of one network.

    Attributes:
        kind: One of `KINDS`.
        stage: The step that decided it: quantize, calibrate, emulate, deploy, run, verify, or the other road.
        error: The class of the exception; "" if there is none.
        message: Its message, the verdict of `verify`, or what the process wrote before it ended.
        op: What a refusal refuses, without names and numbers.
    """

    kind: str
    stage: str = ""
    error: str = ""
    message: str = ""
    op: str = ""

    @property
    def bad(self) -> bool:
        """True if it is a defect of the library."""
        return self.kind in BAD

    @property
    def signature(self) -> str:
        """The outcome without names and numbers, which outcomes of one defect share.

        >>> Outcome("raw error", "deploy", "TypeError", "conv12: got 3").signature
        'raw error, deploy: TypeError: conv#: got #'
        >>> Outcome("mismatch", "verify", message="mismatch: 3 of 9 elements differ, first at conv1, by 2 LSB").signature
        'mismatch, verify: codes; first at conv#'
        """
        first = re.search(r"first at ([^,]+)", self.message) if self.failure.endswith(": codes") else None
        return f"{self.failure}; first at {_plain(first[1])}" if first else self.failure

    @property
    def failure(self) -> str:
        """The signature without the place of the first code that differs, which a smaller program may move."""
        if self.kind == MISMATCH and self.message.startswith("mismatch: the runtime's units"):
            return f"{self.kind}, {self.stage}: {_plain(self.message.partition(': ')[2].partition(': ')[2])}"
        if self.kind in (MISMATCH, CAPTURES_DIFFER) and not self.error:
            return f"{self.kind}, {self.stage}: {'shapes' if self.message.startswith('shapes') else 'codes'}"
        first, *others = self.message.splitlines() or [""]
        place = f" {others[-1]}" if others and self.kind == RAW_ERROR else ""  # of the exception
        return f"{self.kind}, {self.stage}: {self.error + ': ' if self.error else ''}{_plain(first)}{place}"

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return asdict(self)


def _plain(text: str) -> str:
    # A message without names of values and numbers.
    return re.sub(r"(?:#, )+#", "#", _ARTICLES.sub("#", text))[:160]


def refused_op(error: QfuncError) -> str:
    """Return the kinds of ops that an error refuses; else what it found and wanted, without names and numbers.

    >>> from qfunc.errors import DeployError
    >>> refused_op(DeployError(where="deploy, 'conv1'", found="'roll' of 3 axes", wanted="an op that ONNX has", do="Write it."))
    "'roll' of # axes; wanted an op that ONNX has"
    >>> refused_op(DeployError(where="op 'a'", found="the kind 'elu'", wanted="an op that it runs", do="Drop it."))
    'elu'
    """
    kinds = sorted(set(re.findall(r"found the kind '(\w+)'", str(error))))
    if kinds:
        return ", ".join(kinds)
    parts = re.findall(r"found (.+?), wanted (.+?)(?:: |\. )", str(error))
    found, wanted = parts[1] if "\n" in str(error) and len(parts) > 1 else (error.found, error.wanted)
    return f"{_NUMBERS.sub('#', found)[:80]}; wanted {_NUMBERS.sub('#', _NAMES.sub('#', wanted))[:80]}"


def summary(target: str, outcomes: Iterable[tuple[Outcome, bool]]) -> str:
    """Return the table of a target's outcomes, and one of its refusals.

    Args:
        target: The target's name.
        outcomes: Each outcome, with True if the network edits the target.

    >>> pairs = [(Outcome("exact"), False), (Outcome("refused", "deploy", "DeployError", "", "roll"), False)]
    >>> summary("a", pairs).splitlines()[0]
    'a: 2 networks, 0 bad; refused: 1 of 2 (50.0 %) without edits of the target, 0 of 0 with'
    """
    pairs = list(outcomes)
    counts = Counter(_row(o) for o, _ in pairs)
    rows = [(name, str(counts[name])) for name in sorted(counts, key=lambda n: [n.startswith(k) for k in KINDS].index(True))]
    plain, edited = ([o for o, e in pairs if e == which] for which in (False, True))
    refusals = Counter((o.op, o.stage) for o, _ in pairs if o.kind == REFUSED)
    share = 100 * _refused(plain) / max(len(plain), 1)
    head = f"{target}: {len(pairs)} networks, {sum(o.bad for o, _ in pairs)} bad; refused: {_refused(plain)} of {len(plain)} "
    head += f"({share:.1f} %) without edits of the target, {_refused(edited)} of {len(edited)} with"
    parts = [head, table(("outcome", "networks"), rows)]
    if refusals:
        parts += ["", table(("refused", "by", "networks"), [(*key, str(n)) for key, n in refusals.most_common()])]
    return "\n".join(parts)


def _row(outcome: Outcome) -> str:
    return f"{outcome.kind}, {outcome.stage}" if outcome.kind in (REFUSED, *BAD) and outcome.stage else outcome.kind


def _refused(outcomes: list[Outcome]) -> int:
    return sum(o.kind == REFUSED for o in outcomes)
