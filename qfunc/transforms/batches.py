"""How a calibration batch becomes the arguments of a captured model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from qfunc.errors import CalibrationError


class Binder:
    """Turns tensors, tuples and dicts into positional arguments; says once what it leaves out."""

    def __init__(self, network: fx.GraphModule) -> None:
        info = getattr(network.graph._codegen, "pytree_info", None)
        if info is not None:
            self.names = list(info.orig_args)
            self.required = len(self.names)
            spec = info.in_spec
            if spec is not None and spec.num_children == 2:
                self.required = spec.child(0).num_children
                self.keywords = tuple(spec.child(1).context or ())
        else:
            nodes = [n for n in network.graph.nodes if n.op == "placeholder"]
            self.names = [str(n.target) for n in nodes]
            self.required = sum(not n.args for n in nodes)
        self.names = [n for n in self.names if n != "self"]
        self.said = False

    def __call__(self, batch: Any, step: str) -> tuple[Any, ...]:
        """The positional arguments of one batch.

        Raises:
            CalibrationError: too few inputs, unknown names, or no tensors.
        """
        if isinstance(batch, torch.Tensor):
            batch = (batch,)
        if isinstance(batch, Mapping):
            return self._named(batch, step)
        if not isinstance(batch, tuple | list):
            raise self._wrong(step, f"a {type(batch).__name__}")
        if len(batch) < self.required:
            raise self._wrong(step, f"{len(batch)} inputs")
        if len(batch) > self.required and not self.said:
            self.said = True
            text = f"{step}: the batches have {len(batch)} entries, the model requires {self.required}; the leading ones are used."
            warnings.warn(text, UserWarning, stacklevel=4)
        return tuple(batch[: self.required])

    def _named(self, batch: Mapping[str, Any], step: str) -> tuple[Any, ...]:
        names = self.names
        missing = [n for n in names[: self.required] if n not in batch]
        unknown = [k for k in batch if k not in names]
        if missing or unknown:
            raise self._wrong(step, f"a dict with keys {sorted(batch)}")
        last = max(names.index(k) for k in batch)
        if any(n not in batch for n in names[: last + 1]):
            raise self._wrong(step, f"a dict with keys {sorted(batch)}")
        return tuple(batch[n] for n in names[: last + 1])

    def _wrong(self, step: str, found: str) -> CalibrationError:
        wanted = f"a tensor, a tuple or a dict for the inputs {', '.join(self.names)} ({self.required} required)"
        return CalibrationError(where=f"{step}, batch", found=found, wanted=wanted, do="Give batches as the model's forward takes them.")
