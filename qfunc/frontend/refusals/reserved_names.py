"""Refuse members of a model whose names torch.fx's GraphModule has already."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from torch import fx, nn

from qfunc.errors import CaptureError


def require_free_names(names: Iterable[str]) -> None:
    """Raise if a submodule, parameter or buffer of the model itself has the name of an attribute of `fx.GraphModule`.

    A captured network is a GraphModule, whose `graph` or `code` a submodule of that name would replace.

    Args:
        names: Names of members, such as `graph` or `head.weight`, of which the part before the first dot counts.

    Raises:
        CaptureError: names the member.

    >>> require_free_names(["encoder", "decoder.graph.weight"])
    >>> require_free_names(["graph.weight"])
    Traceback (most recent call last):
        ...
    qfunc.errors.CaptureError: capture: found a member 'graph' of the model, wanted a name that torch.fx.GraphModule does \
not have. Rename self.graph, or pass a module that contains the model: deeper members may have any name.
    """
    taken = _attributes()
    for name in names:
        first = name.partition(".")[0]
        if first in taken:
            raise CaptureError(
                where="capture",
                found=f"a member {first!r} of the model",
                wanted="a name that torch.fx.GraphModule does not have",
                do=f"Rename self.{first}, or pass a module that contains the model: deeper members may have any name.",
            )


def members_of(model: nn.Module) -> tuple[str, ...]:
    """Return the names of a module's submodules, parameters and buffers.

    >>> members_of(nn.Linear(2, 3))
    ('weight', 'bias')
    """
    kinds = (model.named_children(), model.named_parameters(recurse=False), model.named_buffers(recurse=False))
    return tuple(name for kind in kinds for name, _ in kind)


@cache
def _attributes() -> frozenset[str]:
    return frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))
