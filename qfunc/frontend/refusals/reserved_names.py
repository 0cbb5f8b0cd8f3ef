"""Refuse members of a model whose names torch.fx cannot use: attributes of its GraphModule, and keywords of Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from keyword import iskeyword

from torch import fx, nn

from qfunc.errors import CaptureError


def require_free_names(names: Iterable[str]) -> None:
    """Raise if a member has the name of an attribute of `fx.GraphModule`, or if a part of its name is a keyword.

    A captured network is a GraphModule, whose `graph` or `code` a submodule of that name would replace, and whose code
    reads members as `self.name`.

    Args:
        names: Names of submodules, parameters and buffers, such as `graph` or `head.weight`.

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
        if (word := next(filter(iskeyword, name.split(".")), None)) is not None:
            raise CaptureError(
                where="capture",
                found=f"a member {name!r} of the model, and {word!r} is a keyword of Python",
                wanted="names that code can read as attributes",
                do=f"Rename {word!r}; a key of an nn.ModuleDict is such a name, too.",
            )
        if first in taken:
            raise CaptureError(
                where="capture",
                found=f"a member {first!r} of the model",
                wanted="a name that torch.fx.GraphModule does not have",
                do=f"Rename self.{first}, or pass a module that contains the model: deeper members may have any name.",
            )


def is_free_name(name: str) -> bool:
    """Return True if a captured network may have a member of that name.

    >>> is_free_name("encoder"), is_free_name("graph")
    (True, False)
    """
    return name not in _attributes()


def members_of(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the submodules, parameters and buffers of a module and of its submodules.

    >>> members_of(nn.Sequential(nn.Linear(2, 3)))
    ('0', '0.weight', '0.bias')
    """
    kinds = (model.named_modules(), model.named_parameters(), model.named_buffers())
    return tuple(name for kind in kinds for name, _ in kind if name)


@cache
def _attributes() -> frozenset[str]:
    return frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))
