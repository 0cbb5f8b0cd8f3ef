"""The record of an op of the user's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from qfunc.errors import SpecError
from qfunc.ops.traits import NONE, Trait
from qfunc.specs._check import as_tuple, frozen_callable, instance_of, integer, number, refuse, text, tuple_of
from qfunc.specs._values import one_line, readable

_OP_SLOTS = ("input", "weight", "bias", "operand")
_USER_TRAITS = (
    Trait.NON_NEGATIVE | Trait.KEEPS_SIGN | Trait.MOVES_VALUES | Trait.INTEGER_RESULT | Trait.INTEGER_IF_INPUTS | Trait.VIEW
    | Trait.COMMUTATIVE | Trait.WEIGHTED | Trait.RECURRENT | Trait.ARITHMETIC | Trait.CREATES | Trait.POSITION_IF_INPUTS
)  # fmt: skip
"""The traits that placement, the partition and the lowerings ask for.  Capture, corrections and reconstruction ask for the
others, of canonical ops alone; the bounds of a clamp follow from its canonical kind."""
_DEF = "Define it with def at the top of a module."


def _domain(function: str) -> str:
    # The header of a function is <name: value, ...>; ONNX takes one without a domain for an operator of its own.
    header = re.match(r"\s*<([^>]*)>", function)
    named = header and re.search(r"\bdomain\s*:\s*\"([^\"]*)\"", header[1])
    return named[1].strip() if named else ""


def _pairs(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, Mapping) else as_tuple(value)


@readable
@frozen
class OpKind:
    """The record of an op of the user's, with the fields of `qfunc.ops.definition.Op`, the record of a canonical op.

    Capture leaves the op as it is. So it has no canonical callable, and the fields `call`, `signature`, `rewrites`,
    `ignored` and `inplace_at` of a canonical op have no meaning for it. `results` follows from the ONNX text.

    Args:
        kind: The name by which selectors and tables refer to it.
        spellings: Qualified names of functions, methods or module classes ("mylib.ops.fast_gelu").
        parameters: The names of its arguments, in order.
        behaves_like: The kind that it is written as, and whose traits it has too; None: `kind`, if it is a canonical one.
        slots: Pairs of a parameter and "input", "weight", "bias" or "operand", which is a weight if it is constant, else an
            input. The other parameters carry no qparams. (): "weight" and "bias" by name, all others are inputs.
        weight_axis: The axis of the weight that runs over output channels.
        spatial: The number of axes along which the op slides, as in `Attr("spatial", 2)`, or None.
        neutral: The number y for which op(x, y) = x, or None; a runtime may leave out such an op.
        traits: What is true of it for all arguments. Only traits that a stage with a target asks for are accepted.
        example: One call, a function of a tensor of shape [2, 3, 5, 6]. `check_target` checks the op by it.
        onnx: A function in ONNX's text form, of its tensors in order, in a domain of its own; None: the ONNX of
            `behaves_like`.
    Raises:
        SpecError: no kind or spelling, a slot of no parameter, a trait that no stage with a target asks for, or an ONNX
            function without a domain, or in that of ONNX's operators.

    >>> from qfunc.specs import Trait
    >>> positive = Trait.NON_NEGATIVE | Trait.KEEPS_SIGN
    >>> OpKind("energy", "mylib.energy", slots={"input": "input"}, traits=positive).slots
    (('input', 'input'),)
    """

    kind: str = field(validator=text())
    spellings: tuple[str, ...] = field(converter=as_tuple, validator=tuple_of(str, at_least=1))
    parameters: tuple[str, ...] = field(default=("input",), converter=as_tuple, validator=tuple_of(str, at_least=1))
    behaves_like: str | None = field(default=None, validator=text(optional=True))
    slots: tuple[tuple[str, str], ...] = field(default=(), kw_only=True, converter=_pairs, validator=instance_of(tuple))
    weight_axis: int = field(default=0, kw_only=True, validator=integer())
    spatial: int | None = field(default=None, kw_only=True, validator=integer(1, optional=True))
    neutral: float | None = field(default=None, kw_only=True, validator=number(optional=True))
    traits: Trait = field(default=NONE, kw_only=True, validator=instance_of(Trait))
    example: Callable[[Any], Any] | None = field(default=None, kw_only=True, validator=frozen_callable(_DEF, optional=True))
    onnx: str | None = field(default=None, kw_only=True, validator=text(optional=True))

    def __attrs_post_init__(self) -> None:
        for entry in self.slots:
            if type(entry) is not tuple or len(entry) != 2:
                do = "Write slots={'input': 'input'}; the names of the op's arguments are its `parameters`."
                raise refuse(self, "slots", entry, "pairs of a parameter and a slot", do)
            if entry[0] not in self.parameters or entry[1] not in _OP_SLOTS:
                wanted = f"a parameter among {self.parameters} and a slot among {_OP_SLOTS}"
                raise refuse(self, "slots", entry, wanted, "Name the parameter in `parameters` too.")
        if unread := self.traits & ~_USER_TRAITS:
            do = f"Leave out {one_line(unread)}."
            raise refuse(self, "traits", one_line(unread), f"traits among {one_line(_USER_TRAITS)}", do)
        if self.onnx is not None and (domain := _domain(self.onnx)) in ("", "ai.onnx"):
            found = f"a function of {'no domain' if not domain else f'the domain {domain!r}'}"
            do = 'Begin it with <opset_import: ["": 21], domain: "mine">.'
            raise SpecError(where="OpKind.onnx", found=found, wanted="a domain that ONNX's operators do not have", do=do)

    def slot(self, parameter: str) -> str | None:
        """Return the slot of a parameter, or None if it carries no qparams.

        >>> OpKind("scale", "mylib.scale", ("input", "gamma", "bias")).slot("bias")
        'bias'
        """
        if self.slots:
            return dict(self.slots).get(parameter)
        return parameter if parameter in ("weight", "bias") else "input"
