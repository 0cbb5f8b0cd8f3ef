"""check_function: the laws of quantize functions, for qfunc's own and for users'."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from qfunc.errors import a_or_an
from qfunc.quantizers.params import flatten
from qfunc.specs import Function, Scheme, from_json, to_json
from qfunc.specs._values import mutability_error
from qfunc.testing.laws.function_cases import ACTIVATIONS, WEIGHTS, FunctionCase, cases, each, same
from qfunc.testing.laws.function_gradients import GRADIENTS
from qfunc.testing.laws.function_values import VALUES
from qfunc.testing.validate import exemptions, require_broken, require_examples, require_protocol


def check_function(
    function: Any,
    *,
    role: str = "weight",
    schemes: Iterable[Scheme] | None = None,
    exempt: Mapping[str, str] | None = None,
    examples: int = 3,
) -> None:
    """Check that a quantize function satisfies the library's laws; needs no test framework.

    Laws, by their names in messages and in `exempt`:

    * `value`: a deeply frozen value with hash, equality, repr, and pickle, deepcopy and JSON round trips;
    * `parameters`: init returns finite float32 tensors in a NamedTuple; learned names are among them;
    * `pure`: no argument changes, torch's generator is not used, equal calls give equal bits;
    * `codes`: codes are in the format's range, qparams are float32 in the scheme's shape, scales are not 0;
    * `export`: dequantize(*export(x)) == apply(x) bit for bit, in float32, bfloat16, float16 and float64;
    * `idempotent`: apply(apply(x)) with the exported qparams equals apply(x);
    * `monotone`: x <= x' under one scale gives apply(x) <= apply(x'); `zero`: 0 becomes exactly 0;
    * `dtype`: the dtype of x is kept, half precision is computed in float32;
    * `channels`: one scale for each channel is the loop over channels; `permutation`: reversed axis 0 gives
      the reversed result;
    * `scaled`: apply(scaled(params, c), c x) == c apply(params, x) for powers of two c, if the function has `scaled`;
    * `extremes`: empty, one element, constant, huge and denormal x give finite values that satisfy `export`;
    * `nan`: NaN stays NaN and changes no other element; `infinity`: infinities give the same values as +-3e38;
    * `gradient`: of x, finite and not always 0; `saturation`: 0 far outside the range;
    * `learned`: every learned parameter gets a finite gradient that is not always 0;
    * `relax`: the surrogate depends only on its arguments, and is finite with a finite gradient;
    * `func`: torch.func.vmap over parameters and x equals the loop, and torch.func.grad of it equals autograd;
    * `compile`: torch.compile(fullgraph=True, backend="aot_eager") gives equal values and gradients.

    Args:
        function: The quantize function; schemes for which its init raises SpecError are skipped.
        role: "weight": init gets x; "activation": init gets a scalar in place of x.
        schemes: Schemes for tensors [3, 5, 8]; None for eight weight or seven activation schemes of every kind of
            format and granularity.
        exempt: Laws that the method breaks by design, each with the reason: {law: reason}.
        examples: The number of tensors per scheme; half of their elements are ties, zeros or out of range.
    Raises:
        SpecError: not a function, not a number of examples, or a name in `exempt` that is not a law.
        AssertionError: the law that fails, the scheme, the first element that differs and its x; or `value` is exempt
            and holds.

    >>> from qfunc.functions import Fixed
    >>> check_function(Fixed(), schemes=[Scheme()], examples=1)
    """
    require_protocol(function, Function, "check_function")
    require_examples(examples, "check_function")
    where, exempt = f"check_function({function!r})", exemptions(exempt, ("value", *LAWS), "check_function")
    if role not in ("weight", "activation"):
        raise AssertionError(f"{where}: role is 'weight' or 'activation', not {role!r}")
    if "value" in exempt:
        require_broken(lambda: _asserted("", _value, function), "value", where)
    else:
        _asserted(f"{where}: value", _value, function)
    constant, compiled = role == "weight", list[Scheme]()
    for case in cases(function, (WEIGHTS if constant else ACTIVATIONS) if schemes is None else schemes, constant, examples):
        for name, law in LAWS.items():
            # Compiling takes a second, so only the first two schemes are compiled.
            skipped = name == "compile" and (case.scheme in compiled or len(compiled) == 2)
            if name not in exempt and not skipped:
                _asserted(f"{where}: {name}, role {role}, {case.scheme!r}", law, case)
        if case.scheme not in compiled and len(compiled) < 2:
            compiled.append(case.scheme)


def _asserted(where: str, law: Callable[[Any], str | None], given: Any) -> None:
    try:
        found = law(given)
    except Exception as e:
        raise AssertionError(f"{where}: raised {type(e).__name__}: {e}") from e
    if found:
        raise AssertionError(f"{where}: {found}")


def _value(function: Any) -> str | None:
    if bad := mutability_error(function):
        return f"holds {bad}"
    if " at 0x" in repr(function):
        return "its repr shows an address, not the code that builds it"
    again = {
        "pickle": pickle.loads(pickle.dumps(function)),
        "deepcopy": copy.deepcopy(function),
        "JSON": from_json(to_json(function), tuple(set(_classes(function)))),
    }
    return next((f"{n} gives another value" for n, v in again.items() if v != function or hash(v) != hash(function)), None)


def _classes(value: Any) -> Iterator[type]:
    if isinstance(value, tuple):
        for part in value:
            yield from _classes(part)
    elif attrs.has(type(value)):
        yield type(value)
        for name in attrs.fields_dict(type(value)):
            yield from _classes(getattr(value, name))


def _parameters(case: FunctionCase) -> str | None:
    params = case.params()
    if not hasattr(params, "_fields"):
        return f"init gives {a_or_an(type(params))}, not a NamedTuple"
    tensors = case.kept(params)[1]
    for name, value in tensors.items():
        if value.dtype != torch.float32 or not value.isfinite().all():
            return f"parameter {name!r} is {value.dtype}, {value}, wanted finite float32"
    missing = [name for name in case.learned() if name not in tensors]
    return f"learned names {missing}, parameters are {list(tensors)}" if missing else None


def _pure(case: FunctionCase) -> str | None:
    x, qparams = case.x.clone(), each(Tensor.clone, case.qparams)
    params = case.params()
    before = {n: t.clone() for n, t in case.kept(params)[1].items()}
    generator = torch.get_rng_state()
    first = [case.apply(params, x), case.trained(params, x), *case.function.export(params, x, case.scheme)[:1]]
    if not torch.equal(generator, torch.get_rng_state()):
        return "torch's global generator was used"
    torch.manual_seed(int(generator[:8].sum()) + 1)
    second = [case.apply(params, x), case.trained(params, x), *case.function.export(params, x, case.scheme)[:1]]
    torch.set_rng_state(generator)
    after = {"x": (x, case.x), **{n: (t, before[n]) for n, t in case.kept(params)[1].items()}}
    after |= {f"qparams.{n}": (a, b) for (n, a), (_, b) in zip(flatten(qparams), flatten(case.qparams), strict=True)}
    changed = [n for n, (a, b) in after.items() if not same(a, b)]
    if changed:
        return f"changes its argument {', '.join(changed)}"
    names = ("apply", "relax", "export")
    return next(
        (f"{n} gives other values the second time" for n, a, b in zip(names, first, second, strict=True) if not same(a, b)),
        None,
    )


LAWS: dict[str, Callable[[FunctionCase], str | None]] = {"parameters": _parameters, "pure": _pure, **VALUES, **GRADIENTS}
"""Name -> law in the order of checking; a law returns a description of the violation, or None."""
