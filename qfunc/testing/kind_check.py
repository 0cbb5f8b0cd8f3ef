"""check_each_kind: the first difference of each kind of op, where check_target stops at the first of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from qfunc.execution.distributed import ranks, require_group
from qfunc.specs import Copy, Target, Unknown
from qfunc.testing.default_networks import fused_acts, kinds_named
from qfunc.testing.large_sums import large_sums
from qfunc.testing.one_op import KINDS, networks_of, require_kind
from qfunc.testing.shares import gather_results
from qfunc.testing.target_check import Run, check_target
from qfunc.transforms.validate import require_target_value

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def check_each_kind(
    target: Target,
    *,
    run: Run | None = None,
    kinds: Iterable[str] | None = None,
    examples: int = 15,
    exempt: Mapping[str, str] | None = None,
    group: ProcessGroup | None = None,
) -> dict[str, str]:
    """Return the message of `check_target` for each kind of op that breaks a law, on networks of one op of this kind.

    Activations that the target fuses follow the op in some networks.

    Args:
        target: The hardware.
        run: As of `check_target`.
        kinds: The kinds of ops; None for those of `strategies.networks_of` that the kernels of the target name.
        examples: The number of networks of each kind.
        exempt: As of `check_target`.
        group: The processes that share the kinds, of which each is checked by one; all return the same.  By default the
            default group of torch.distributed, if there is one.
    Raises:
        SpecError: a kind without networks of one op, or an argument that `check_target` refuses.
        AssertionError: another process of the group failed.

    >>> from qfunc import targets
    >>> check_each_kind(targets.onnxruntime, kinds=("add",), examples=1)
    {}
    """
    require_target_value(target, "testing.check_each_kind")
    require_group(group, "check_each_kind")
    acts = fused_acts(target)
    checked = tuple(dict.fromkeys(_computed(target) if kinds is None else kinds))
    for kind in checked:
        require_kind(kind)

    def check(rank: int, number: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for kind in checked[rank::number]:
            models = networks_of(kind=kind, acts=acts)
            try:
                check_target(target, run=run, models=models, examples=examples, exempt=exempt)
                check_target(target, run=run, models=large_sums(target, (kind,)), exempt=exempt)
            except AssertionError as e:
                found[kind] = str(e)
        return found

    found = {kind: text for part in gather_results(check, ranks(group), AssertionError) for kind, text in part.items()}
    return {kind: found[kind] for kind in checked if kind in found}


def _computed(target: Target) -> tuple[str, ...]:
    kernels = [k for k in target.kernels if not isinstance(k.arithmetic, Copy | Unknown)]
    return tuple(dict.fromkeys(kind for k in kernels for kind in kinds_named(k.unit) if kind in KINDS))
