"""Refuse forwards that assign buffers: a graph has no place for what a call leaves to the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from qfunc.errors import CaptureError
from qfunc.frontend.source_location import current_line, source_line

Buffers = dict[str, tuple[nn.Module, str, Tensor | None]]
"""The path of a buffer -> its module, its name in the module and its value."""
_UNKNOWN = object()
_SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined]
_WANTED, _DO = "a forward that does not change the model", "Return the new value instead of storing it."


def buffers_of(model: nn.Module) -> Buffers:
    """Return the buffers of a model before it is traced.

    >>> [(path, name) for path, (_, name, _) in buffers_of(nn.Sequential(nn.BatchNorm1d(3, affine=False))).items()]
    [('0.running_mean', 'running_mean'), ('0.running_var', 'running_var'), ('0.num_batches_tracked', 'num_batches_tracked')]
    """
    return {
        f"{path}.{name}".lstrip("."): (module, name, value)
        for path, module in model.named_modules()
        for name, value in module._buffers.items()
    }


def require_same_buffers(model: nn.Module, before: Buffers) -> None:
    """Raise if the forward of a model assigned or registered a buffer while it was traced.

    An assignment of the buffer's own value is undone.

    Raises:
        CaptureError: names the line that computes the new value, or else the buffer.
    """
    for path, (module, name, now) in (before | buffers_of(model)).items():
        value: Any = before[path][2] if path in before else _UNKNOWN
        now = module._buffers.get(name) if path in before else now
        node = now.node if isinstance(now, fx.Proxy) else None
        if node is not None and node.op == "get_attr" and node.target == path:
            module._buffers[name] = value
        elif now is not value:
            raise _error(path, node)


@contextmanager
def refusing_assignments(model: nn.Module) -> Iterator[None]:
    """Raise if the forward of a module assigned a buffer meanwhile, or `x.data`; torch.export drops such assignments.

    Raises:
        CaptureError: names the buffer, at the end, or at once the line that assigns `x.data`.
    """
    assigned: list[str] = []
    handles = []
    for path, module in model.named_modules():
        before: dict[str, Tensor | None] = {}

        def note(module: nn.Module, _: Any, before: dict[str, Tensor | None] = before) -> None:
            before.clear()
            before.update(module._buffers)

        def compare(module: nn.Module, *_: Any, path: str = path, before: dict[str, Tensor | None] = before) -> None:
            now = module._buffers
            names = [n for n in now | before if n not in now or n not in before or now[n] is not before[n]]
            assigned.extend(f"{path}.{name}".lstrip(".") for name in names)

        handles += [module.register_forward_pre_hook(note), module.register_forward_hook(compare)]
    try:
        with _RefusingData():
            yield
    except Exception as e:
        if assigned:
            raise _error(assigned[0], None) from e
        raise
    finally:
        for handle in handles:
            handle.remove()
    if assigned:
        raise _error(assigned[0], None)


class _RefusingData(TorchFunctionMode):
    # Raises where a tensor's `data` is assigned.

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA:
            raise assignment_error(current_line() or "forward", "data")
        return func(*args, **(kwargs or {}))


def assignment_error(where: str, name: str) -> CaptureError:
    """Return the error of an assignment to an attribute of a tensor."""
    found = f"an assignment to the attribute {name!r} of a tensor"
    return CaptureError(where=where, found=found, wanted=_WANTED, do=_DO)


def _error(path: str, node: fx.Node | None) -> CaptureError:
    return CaptureError(
        where=(source_line(node) if node is not None else "") or f"buffer {path!r}",
        found=f"an assignment to the buffer {path!r}",
        wanted=_WANTED,
        do=_DO,
    )
