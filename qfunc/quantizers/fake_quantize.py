"""FakeQuantize, the library's only nn.Module: it quantizes one tensor in the graph and stores its qparams."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self
from zlib import crc32

import torch
from torch import Tensor, nn

from qfunc.errors import CalibrationError
from qfunc.numerics.qparams import Affine, from_range, of_tensor, qparams_shape
from qfunc.numerics.scales import outer_scale, product
from qfunc.quantizers.batch_norm import materialize, uses_batch
from qfunc.quantizers.cached_value import CachedValue
from qfunc.quantizers.params import flatten, template, unflatten
from qfunc.quantizers.recompute import recomputable
from qfunc.quantizers.scale_following import batch_norm_factor, can_track_batch_norm, is_odd
from qfunc.quantizers.site import Site
from qfunc.quantizers.value import Value
from qfunc.specs import PerTensor
from qfunc.specs.protocols import LearnedFunction, NoiselessFunction, RelaxedFunction


class FakeQuantize(nn.Module):
    """The value that the hardware represents for x: the site's quantize function with this site's parameters.

    The parameters have their final shapes from the start, so that checkpoints and data parallelism work.  Before
    calibration they are NaN, and calling the module raises.  Only an activation with one scale per channel gets
    its shape later, once: from calibration, or from the state_dict of a calibrated model.  Parameters that the
    function learns are nn.Parameters, the others buffers, each under its field's name.  A learned scalar is stored as a
    vector of one element, because FSDP shards no scalars.  In training mode a training surrogate (`relax`) replaces the
    function, with noise from the buffers `seed` and `step` only.

    Args:
        site: The quantized tensor's site.
        like: The constant itself, or a scalar in place of an activation.
    Raises:
        CalibrationError: a call before calibration, or with another number of channels.
        SpecError: the function does not support the site's scheme.
    """

    seed: Tensor
    step: Tensor
    outer: Tensor

    def __init__(self, site: Site, like: Tensor) -> None:
        super().__init__()
        self.site = site
        self.like = tuple(like.shape)
        self.scheme = site.scheme  # stored, because a compiler cannot construct it in a trace
        self.dynamic = site.dynamic
        self.by_channel = site.by_channel
        shape_is_unknown = self.dynamic or self.by_channel
        self.scale_shape: tuple[int, ...] = () if shape_is_unknown else qparams_shape(site.scheme, self.like)
        function: Any = site.function
        self.template, tensors = self._nan_params(like.detach())
        learned = function.learned(site.scheme) if isinstance(function, LearnedFunction) else ()
        self.scalars = frozenset(n for n in learned if n in tensors and not tensors[n].ndim and not shape_is_unknown)
        for name, value in {} if self.dynamic else tensors.items():
            if name in learned:
                self.register_parameter(name, nn.Parameter(value.reshape(1) if name in self.scalars else value))
            else:
                self.register_buffer(name, value)
        # Computed once, because a check of a protocol is slow, and a compiler would trace it.
        self.relaxed = isinstance(function, RelaxedFunction)
        self.noisy = self.relaxed and not (isinstance(function, NoiselessFunction) and not function.noisy)
        if self.relaxed:
            self.register_buffer("seed", torch.tensor(crc32(site.name.encode()), device=like.device))
            self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=like.device))
        if site.outer:
            self.register_buffer("outer", torch.full((), torch.nan, device=like.device))
        self.ready = self.dynamic and not site.outer
        self.factors: tuple[FakeQuantize, ...] = ()  # a derived scale is the product of their scales; not submodules
        self.norm: tuple[Any, ...] = ()  # the BatchNorm that the scales follow; not a submodule either
        self.odd = False  # whether Q(-x) = -Q(x), if the scales follow a BatchNorm
        self.adjustment: tuple[Affine, Affine] | None = None  # a weight's qparams before and after the last calibration
        self.cache = CachedValue()

    def _nan_params(self, like: Tensor) -> tuple[Any, dict[str, Tensor]]:
        # Return the template of the parameters, and NaN tensors of their final shapes by name.
        zeros = torch.zeros(self.scale_shape, device=like.device)
        params = self.site.function.init(from_range(zeros, zeros, self.site.scheme), like, self.site.scheme)
        tensors = {n: torch.full_like(t, torch.nan if t.is_floating_point() else 0).detach() for n, t in flatten(params)}
        return template(params), tensors

    def forward(self, x: Tensor, norm: nn.Module | None = None, groups: int = 0) -> Tensor:
        """Return the quantized value of x, in real units and in the dtype of x.

        Args:
            norm: The BatchNorm that trains after the op with weight x (`qfunc.quantizers.batch_norm`).
            groups: The groups of that op if it is a transposed conv.
        """
        if self.site.constant and not self.training:
            norms = [*([] if norm is None else [norm]), *(n for m in (self, *self.factors) for n in m.norm)]
            tensors = [x, *(t for m in (self, *self.factors, *norms) for t in (*m.parameters(), *m.buffers()))]
            return self.cache.get(tensors, lambda: self._quantize(x, norm, groups))
        self.cache.clear()
        return self._quantize(x, norm, groups)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as `nn.Module.train` does, and clear the cache: `.data` and NumPy do not bump versions."""
        self.cache.clear()
        return super().train(mode)

    def _quantize(self, x: Tensor, norm: nn.Module | None, groups: int) -> Tensor:
        batch = norm is not None and uses_batch(norm)
        follows = batch and bool(self.norm)
        params, function = self._current_params(x, follows), self.site.function
        noise: tuple[Tensor, ...] = ()
        relaxed = self.training and self.relaxed
        if relaxed and self.noisy:
            noise = self.seed, materialize(self.step).clone()
            self.step.add_(1)
        named = dict(flatten(params))
        value = Value(function, self.scheme, self.template, tuple(named), relaxed, groups)
        work, factors = value.work(norm, batch, follows, self.odd)
        tensors: tuple[Tensor, ...] = (*factors, *named.values(), *noise)
        # In compiled evaluation there is usually no backward, and a cached weight must not be a checkpointed value.
        in_evaluation = torch.compiler.is_compiling() and not self.training
        return work(x, *tensors) if in_evaluation else recomputable(work, x, *tensors)

    def _current_params(self, x: Tensor, unfolded: bool) -> Any:
        # Return the params for x; with `unfolded`, those of the weight before the BatchNorm is folded into it.
        if not self.ready:
            do = "Run qfunc.calibrate(batches)(quantized), or load a calibrated state_dict."
            raise CalibrationError(where=self._where, found="no qparams yet", wanted="a calibrated model", do=do)
        if self.dynamic:
            qparams = of_tensor(x, self.scheme, self.outer if self.site.outer else None)
            return self.site.function.init(qparams, x.detach(), self.scheme)
        if self.by_channel:
            self._require_channels(x)
        return self.stored_params() if unfolded else self.params()

    def _require_channels(self, x: Tensor) -> None:
        shape = tuple(x.shape)
        if len(shape) != len(self.scale_shape) or qparams_shape(self.site.scheme, shape) != self.scale_shape:
            wanted = f"scales of shape {self.scale_shape}, as calibrated"
            do = "Pass inputs as in calibration, or calibrate again."
            raise CalibrationError(where=self._where, found=f"a tensor of shape {shape}", wanted=wanted, do=do)

    def params(self) -> Any:
        """Return the function's current parameters, in the form that its `init` returns."""
        if self.factors:
            scale = product([factor.scales() for factor in self.factors], self.scale_shape[0])
            derived = Affine(scale, torch.zeros_like(scale))
            return self.site.function.init(derived, scale, self.scheme)
        stored = self.stored_params()
        return self._multiply(stored, batch_norm_factor(self.norm[0], self.scale_shape)) if self.norm else stored

    def stored_params(self) -> Any:
        """Return the stored parameters: if they follow a BatchNorm, those of the weight before folding."""
        return unflatten(self.template, self._stored)

    def _stored(self, name: str) -> Tensor:
        value: Tensor = getattr(self, name)
        return value.reshape(()) if name in self.scalars else value

    def _multiply(self, params: Any, factor: Tensor) -> Any:
        function: Any = self.site.function  # `can_track_batch_norm` requires `scaled`
        return function.scaled(params, factor)

    def follow(self, norm: Any, groups: int) -> None:
        """Make the scales follow a BatchNorm from now on, if possible; only for transforms that own the model."""
        if not self.norm and can_track_batch_norm(self.site, self.scale_shape, norm, groups):
            unfolded = self._multiply(self.stored_params(), 1 / batch_norm_factor(norm, self.scale_shape))
            if unfolded is not None:
                self._store(unfolded)
                self.norm, self.odd = (norm,), is_odd(self.scheme) and not self.relaxed

    def stop_following(self) -> None:
        """Fix the scales at their current values, so that they no longer follow a BatchNorm."""
        current, self.norm = self.params(), ()
        self._store(current)

    def _store(self, params: Any) -> None:
        with torch.no_grad():
            for name, value in flatten(params):
                self._stored(name).copy_(value)

    def export(self, x: Tensor) -> tuple[Tensor, Affine]:
        """Return the codes of x and their qparams."""
        with torch.no_grad():
            codes, qparams = self.site.function.export(self.params(), x.detach(), self.site.scheme)
        return codes, qparams

    def qparams(self) -> Affine:
        """Return the current qparams.

        Raises:
            CalibrationError: the qparams are computed at run time.
        """
        if self.dynamic:
            do = "Use a target with static scales; only the simulation computes scales at run time."
            raise CalibrationError(where=self._where, found="a dynamic scale", wanted="static qparams", do=do)
        # Qparams do not depend on x.  For one scale one element suffices, which avoids slow functions of large tensors.
        return self._qparams_of(() if isinstance(self.site.scheme.scale.shared, PerTensor) else self.like)

    def scales(self) -> Tensor:
        """Return the current scales without gradient: one, or one per channel."""
        return self._qparams_of(self.scale_shape).scale

    def _qparams_of(self, shape: tuple[int, ...]) -> Affine:
        with torch.no_grad():
            params = self.params()
            zeros = torch.zeros((), device=flatten(params)[0][1].device).expand(shape)
            qparams: Affine = self.site.function.export(params, zeros, self.site.scheme)[1]
        return qparams

    def set_qparams(self, qparams: Affine, x: Tensor | None = None) -> None:
        """Set the parameters from qparams, and from x if it is a constant; only for transforms that own the model."""
        if self.site.outer:
            self.outer = outer_scale(qparams.scale, self.scheme.scale)
            self.ready = True
        if self.dynamic:
            return
        if self.by_channel:
            self._set_shape(tuple(qparams.scale.shape))
        shape = self.scale_shape
        reshaped = qparams._replace(scale=qparams.scale.reshape(shape), zero_point=qparams.zero_point.reshape(shape))
        like = torch.zeros(self.like, device=qparams.scale.device) if x is None else x.detach()
        params = self.site.function.init(reshaped, like, self.site.scheme)
        self._store(self._multiply(params, 1 / batch_norm_factor(self.norm[0], shape)) if self.norm else params)
        self.ready = True

    def load_shape(self, state: Mapping[str, Any], prefix: str) -> None:
        """Set the shape of an uncalibrated activation with one scale per channel from a state_dict."""
        if not self.by_channel or self.ready:
            return
        axis: Any = self.site.scheme.scale.shared.axis  # type: ignore[union-attr]
        for name, _ in flatten(self.params()):
            shape = tuple(state[prefix + name].shape) if prefix + name in state else ()
            if -len(shape) <= axis < len(shape) and math.prod(shape) == shape[axis]:
                self._set_shape(shape)

    def _set_shape(self, shape: tuple[int, ...]) -> None:
        if shape == self.scale_shape:
            return
        self.scale_shape = self.like = shape
        device = flatten(self.params())[0][1].device
        for name, value in self._nan_params(torch.zeros(shape, device=device))[1].items():
            getattr(self, name).data = value

    @property
    def _where(self) -> str:
        return f"site {self.site.name!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # model.half() must not round the parameters: only the device changes, not the dtype.
        def keep_dtype(t: Tensor) -> Tensor:
            new = fn(t)
            return t.to(new.device) if new.dtype != t.dtype else new

        return super()._apply(keep_dtype, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        state, prefix = args[:2]
        self.load_shape(state, prefix)
        for name in (prefix + n for n in self.scalars):
            if name in state and not state[name].ndim:
                state[name] = state[name].reshape(1)
        super()._load_from_state_dict(*args, **kwargs)
        tensors = [t for t in (*self._parameters.values(), *self._buffers.values()) if t is not None]
        self.ready = not any(bool(t.isnan().any()) for t in tensors)

    def extra_repr(self) -> str:
        """Return the name, the format, and the scale if there is only one."""
        scale = "one scale per channel" if self.by_channel and not self.scale_shape else f"scale={tuple(self.scale_shape)}"
        if self.dynamic:
            scale = "dynamic scale"
        elif self.ready and not self.scale_shape:
            scale = f"scale={self.qparams().scale.item():.6g}"
        return f"{self.site.name!r}, {self.site.scheme.format}, {scale}"
