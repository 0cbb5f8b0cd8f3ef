"""What a refusal refuses, without the names and numbers of one network."""

from __future__ import annotations

import re

from qfunc.errors import QfuncError

_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBERS = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def refused_op(error: QfuncError) -> str:
    """Return the kind of op that an error names; else its found and wanted parts without names and numbers.

    >>> from qfunc.errors import DeployError
    >>> refused_op(DeployError(where="deploy, 'conv1'", found="'roll' of 3 axes", wanted="an op that ONNX has", do="Write it."))
    "'roll' of # axes; wanted an op that ONNX has"
    >>> refused_op(DeployError(where="op 'a'", found="the kind 'elu'", wanted="an op that it runs", do="Drop it."))
    'elu'
    """
    kind = re.match(r"the kind '(\w+)'", error.found)
    if kind:
        return kind[1]
    return f"{_NUMBERS.sub('#', error.found)[:80]}; wanted {_NUMBERS.sub('#', _NAMES.sub('#', error.wanted))[:80]}"


__all__ = ["refused_op"]
