"""An accelerator for tests: tensors whose values are on the CPU, and which mix with no other tensors, as those of CUDA.

`start()` gives this process the device "other", as PyTorch's Python backends are made.  It cannot be undone, so that tests
start it in a process of its own.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

NAME = "other"
_CPU = torch.device("cpu")
_MIXES = frozenset(["_to_copy", "copy_", "_copy_from", "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"])
_BY_FIRST = frozenset(
    ["_to_copy", "copy_", "index", "index_put", "index_put_"]
)  # these return a tensor where their first one is
_library: list[Any] = []


class Away(Tensor):
    """A tensor of the accelerator."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> Away:
        made = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    def tolist(self) -> Any:
        return self.raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype).to(device or self.device)

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = op._schema.name.split("::")[1]
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    away = [t for t in tensors if isinstance(t, Away)]
    here = [t for t in tensors if not isinstance(t, Away)]
    if away and here and name not in _MIXES and (name == "cat" or any(t.dim() for t in here)):
        found = f"at least two devices, {NAME}:0 and cpu! ({op})"
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {found}")
    if away and name in ("index", "_unsafe_index") and not isinstance(args[0], Away):
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor (cpu) ({op})")
    wanted = kwargs.get("device")
    plain, named = pytree.tree_map_only(Away, lambda t: t.raw, (args, {k: v for k, v in kwargs.items() if k != "pin_memory"}))
    if wanted is not None and torch.device(wanted).type == "meta":
        return op(*plain, **named)
    first = bool(args) and isinstance(args[0], Tensor) and name in _BY_FIRST
    leaves = torch.device(wanted).type != "cpu" if wanted is not None else isinstance(args[0], Away) if first else bool(away)
    if wanted is not None:
        named["device"] = _CPU
    with torch.no_grad():
        result = op(*plain, **named)
    known = {id(t.raw): t for t in away}

    def placed(t: Tensor) -> Tensor:
        if id(t) in known:
            return known[id(t)]
        own = any(t is each for each in here)
        if own and name != "_to_copy":
            return t
        return Away(t.clone() if own else t) if leaves else (t.clone() if own or name == "_to_copy" else t)

    return pytree.tree_map_only(Tensor, placed, result)


class _Generator(torch.Generator):
    # Random numbers of the accelerator are those of the CPU.
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")


def start() -> str:
    """Make the accelerator of this process, and return its name."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    _library.append(torch.library.Library("_", "IMPL"))
    _library[0].fallback(lambda keys, op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1", with_keyset=True)
    plain = torch.tensor

    def tensor(data: Any, **options: Any) -> Tensor:
        device = options.pop("device", None)
        made = plain(data.raw if isinstance(data, Away) else data, **options)
        return made.to(device or (data.device if isinstance(data, Away) else _CPU))

    torch.tensor = tensor  # it reads no tensors of Python backends
    torch.Generator = _Generator
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else nullcontext()  # nor have these a version
    return NAME
