"""Cost of the numerics, as ratios to torch's own kernels and to the float network.

    python benchmarks/numerics.py [--quick] [--only fake functions estimators search calibration floats]

Runs are interleaved in one process.  Each ratio is of the medians, followed by the ratio of the minima.  On a machine with
other load, `--clock cpu --threads 1` gives the most stable ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from baselines import exhaustive, kernel, objective
from interleave import Times, Work, both, forward, interleaved, ms, ratio
from networks import resnet18
from torch import Tensor

import qfunc
from qfunc import estimators, functions, targets
from qfunc.analysis.report_format import table
from qfunc.errors import SpecError
from qfunc.numerics import fake_quantize, minifloat
from qfunc.numerics.qparams import of_tensor
from qfunc.specs import Int, Log, PerBlock, PerChannel, Scale, Scheme, ZeroPoint, edit
from qfunc.specs.formats import E4M3FN, E4M3FNUZ, E5M2

ACTIVATION, WEIGHT, IMAGE = (8, 64, 56, 56), (512, 512, 3, 3), (1, 3, 224, 224)
Timed = Callable[..., Times]
UNSIGNED = Scheme(Int(8, signed=False), zero_point=ZeroPoint())


def fake_table(timed: Timed, runs: int, quick: bool) -> None:
    """Compare fake quantization with torch's kernels, eager and compiled."""
    rows = []
    for shape, axis, zero_point in ((ACTIVATION, 1, ZeroPoint()), (WEIGHT, 0, None), (IMAGE, 1, ZeroPoint())):
        x = torch.randn(shape)
        channel = Scheme(Int(8), Scale(PerChannel(axis)), zero_point)
        against_channel = kernel(channel, of_tensor(x, channel))
        block = Scale(PerBlock(1, 32 if shape[1] % 32 == 0 else 1))
        for name, scheme in (
            ("tensor", Scheme(Int(8), Scale(), zero_point)),
            ("tensor, 1/s", Scheme(Int(8), Scale(), zero_point, division=False)),
            ("channel", channel),
            ("block", Scheme(Int(8), block, zero_point)),
        ):
            if quick and (name == "tensor, 1/s" or shape == IMAGE):
                continue
            qparams = of_tensor(x, scheme)
            base = kernel(scheme, qparams) if name.startswith("tensor") else against_channel
            ours = lambda x, qparams=qparams, scheme=scheme: fake_quantize(x, qparams, scheme)  # noqa: E731
            torch.compiler.reset()
            compiled = torch.compile(ours, fullgraph=True)
            variants = {"torch": base, "eager": ours, "compiled": compiled}
            works = {f"{n}, {d.__name__}": d(f, x) for n, f in variants.items() for d in (forward, both)}
            times = timed(works, runs)
            pairs = [(n, d) for n in ("eager", "compiled") for d in ("forward", "both")]
            cells = [ratio(times, f"{n}, {d}", f"torch, {d}") for n, d in pairs]
            rows.append(["x".join(map(str, shape)), name, ms(times, "torch, forward"), ms(times, "torch, both"), *cells])
    head = ("x", "scale per", "torch, ms", "with backward", "eager", "with backward", "compiled", "with backward")
    print("\nfake quantization to 8 bits: ratio to torch.fake_quantize_per_*_affine; goals 2.4, -, 0.5, 0.9")
    print(table(head, rows))
    x, rows = torch.randn(ACTIVATION), []
    works = {"torch": forward(kernel(UNSIGNED, of_tensor(x, UNSIGNED)), x)}
    for mode in ("half_even", "half_away", "half_up", "half_down", "half_to_zero", "floor", "trunc",
                 "negative_ceil_else_half_even", "half_even_on_index", "half_up_on_index"):  # fmt: skip
        scheme = Scheme(Int(8, signed=False), zero_point=ZeroPoint(), rounding=mode)
        works[mode] = forward(lambda x, s=scheme, q=of_tensor(x, scheme): fake_quantize(x, q, s), x)  # type: ignore[misc]
    times = timed(works, runs)
    print("\nby rounding mode, eager forward: ratio to torch.fake_quantize_per_tensor_affine")
    print(table(("rounding", "ms", "ratio"), [[n, ms(times, n), ratio(times, n, "torch")] for n in works]))


def trained(function: Any, x: Tensor, scheme: Scheme) -> Work:
    """Return a function that runs a quantize function forward and backward, as in training."""
    params = function.init(of_tensor(x, scheme), x, scheme)
    names = function.learned(scheme) if hasattr(function, "learned") else ()
    leaves = {n: getattr(params, n).detach().clone().requires_grad_() for n in names}
    params, noise = params._replace(**leaves), torch.rand_like(x)
    if hasattr(function, "relax"):
        return both(lambda x: function.relax(params, x, scheme, noise), x, leaves.values())
    return both(lambda x: function.apply(params, x, scheme), x, leaves.values())


def _swapped(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *rest: f(rest[-1], *rest[:-1])


def function_table(timed: Timed, runs: int, quick: bool) -> None:
    """Compare LSQ with torch's learnable kernels, and every function with Fixed."""
    x, weight, rows, lsq = torch.randn(ACTIVATION), torch.randn(WEIGHT), [], functions.Lsq()
    for value, axis in ((x, None), (weight, 0)):
        scheme = Scheme(Int(8), Scale() if axis is None else Scale(PerChannel(axis)))
        qparams = of_tensor(value, scheme)
        scale, zero = qparams.scale.flatten().clone().requires_grad_(), torch.zeros(qparams.scale.numel()).requires_grad_()
        factor = 1 / (127 * value.numel() / scale.numel()) ** 0.5
        if axis is None:
            base = partial(_swapped(torch._fake_quantize_learnable_per_tensor_affine), scale, zero, -128, 127, factor)
        else:
            base = partial(_swapped(torch._fake_quantize_learnable_per_channel_affine), scale, zero, 0, -128, 127, factor)
        params = lsq.init(qparams, value, scheme)
        learned = {n: getattr(params, n).detach().clone().requires_grad_() for n in lsq.learned(scheme)}
        params = params._replace(**learned)
        ours = lambda x, p=params, s=scheme: lsq.apply(p, x, s)  # noqa: E731
        torch.compiler.reset()
        works = {"torch": both(base, value, (scale, zero)), "eager": both(ours, value, learned.values())}
        compiled = both(torch.compile(ours, fullgraph=True), value, learned.values())
        with contextlib.suppress(torch._dynamo.exc.Unsupported):
            compiled()
            works["compiled"] = compiled
        times = timed(works, runs)
        whole = ratio(times, "compiled", "torch") if "compiled" in works else "does not trace"
        cells = [ms(times, "torch"), ratio(times, "eager", "torch"), whole]
        rows.append(["tensor, activation" if axis is None else "channel, weight", *cells])
    print("\nLSQ, forward and backward: ratio to torch's learnable fake quantization")
    print(table(("scale per", "torch, ms", "eager", "compiled"), rows))
    works = {"Fixed": trained(functions.Fixed(), x, UNSIGNED)}
    for name in functions.__all__:
        kind = getattr(functions, name)
        if not isinstance(kind, type) or name in ("Fixed", "WithGradient"):
            continue
        for scheme in (UNSIGNED, Scheme(), Scheme(Int(8, signed=False)), Scheme(Log())):
            try:
                works[name] = trained(kind(), x, scheme)
            except SpecError:
                continue
            break
    times = timed(works, runs if quick else 2 * runs // 3)
    print("\nevery function as in training, on 8x64x56x56, forward and backward, eager: ratio to Fixed")
    print(table(("function", "ms", "ratio"), [[n, ms(times, n), ratio(times, n, "Fixed")] for n in works]))


def every_estimator() -> dict[str, Any]:
    """Return all estimators of qfunc.estimators with their defaults, and averages of two of them."""
    found = {n: getattr(estimators, n)() for n in estimators.__all__}
    return found | {"Ema(Quantile)": estimators.Ema(estimators.Quantile()), "Ema(Mse)": estimators.Ema(estimators.Mse())}


def estimator_table(timed: Timed, runs: int, quick: bool) -> None:
    """Compare one more batch for every estimator with torch's reductions."""
    x, rows = torch.randn(ACTIVATION), []
    codes = x.flatten().view(torch.int32).bitwise_right_shift(16).bitwise_and(0xFFFF)
    coarse = codes.bitwise_right_shift(5).to(torch.int16)
    channel = Scheme(Int(8, signed=False), Scale(PerChannel(1)), ZeroPoint())
    works: dict[str, Work] = {
        "aminmax": lambda: torch.aminmax(x),
        "amin + amax": lambda: (x.amin((0, 2, 3)), x.amax((0, 2, 3))),
        "histc": lambda: torch.histc(x, 2048),
        "bincount alone": lambda: torch.bincount(codes, minlength=1 << 16),
        "extremes and count": lambda: (torch.aminmax(x), torch.bincount(coarse, minlength=1 << 11)),
    }
    for scheme, suffix in ((UNSIGNED, "tensor"), (channel, "channel")):
        for name, estimator in every_estimator().items():
            state = estimator.update(estimator.init(scheme, x), x, scheme)
            works[f"{name}, {suffix}"] = lambda e=estimator, s=state, k=scheme: e.update(s, x, k)  # type: ignore[misc]
    times = timed(works, runs)
    # The cost of a range is the cost of reading x.  So both are timed after the same work, with the same cache contents.
    beside = ("aminmax", "MinMax, tensor", "amin + amax", "MinMax, channel")
    bare = timed({name: works[name] for name in beside}, 4 * runs)
    for name in every_estimator():
        tensor, each = f"{name}, tensor", f"{name}, channel"
        rows.append([name, ms(times, tensor), ratio(times, tensor, "aminmax"), ratio(times, tensor, "histc"),
                     ms(times, each), ratio(times, each, "amin + amax")])  # fmt: skip
    print("\nestimators, one more batch of 8x64x56x56; goals MinMax 1.1 of aminmax and amin + amax, histograms 4 of aminmax")
    print("torch, ms: " + ", ".join(f"{n} {ms(times, n)}" for n in ("aminmax", "amin + amax", "histc", "bincount alone")))
    floor = ratio(times, "extremes and count", "aminmax")
    alone = ratio(bare, "MinMax, tensor", "aminmax"), ratio(bare, "MinMax, channel", "amin + amax")
    print(f"lower bound: aminmax, with bincount of 2048 precomputed int16 codes: {floor} of aminmax")
    print(f"MinMax timed with these two only: {alone[0]} of aminmax, {alone[1]} of amin + amax")
    print(table(("estimator", "tensor, ms", "to aminmax", "to histc", "channel, ms", "to amin + amax"), rows))


def search_table(timed: Timed, runs: int, quick: bool) -> None:
    """Compare searches for the range of least squared error: time, and error on the data."""
    rows, generator = [], torch.Generator().manual_seed(0)
    for shape, name in ((ACTIVATION, "tensor"), ((256, 256, 3, 3), "channel")):
        for bits in (8, 4):
            for outlier in (False,) if quick and name == "channel" else (False, True):
                x = torch.randn(shape, generator=generator)
                if outlier:
                    x.flatten()[12345] = 1e4
                per_channel = Scheme(Int(bits, low=1 - 2 ** (bits - 1)), Scale(PerChannel(0)))
                scheme = Scheme(Int(bits, signed=False), zero_point=ZeroPoint()) if name == "tensor" else per_channel
                mse = estimators.Mse()
                ours = lambda x=x, s=scheme, e=mse: e.range(e.update(e.init(s, x), x, s), s)  # noqa: E731
                ranges = [tuple(ours())]
                tried = lambda x=x, s=scheme, kept=ranges: kept.append(exhaustive(x, s))  # noqa: E731
                times = timed({"ours": ours}, runs) | timed({"exhaustive": tried}, 1, 0)
                errors = [objective(x, *found, scheme).double().sum() for found in ranges]
                speed = min(times["exhaustive"]) / statistics.median(times["ours"])
                more = f"{100 * float(errors[0] / errors[1] - 1):+.3f} %"
                cells = [ms(times, "ours"), ms(times, "exhaustive"), f"{speed:.0f}x", more]
                rows.append([name, str(bits), "10^4" if outlier else "none", *cells])
    print("\nMse() compared with 95 ranges tried on the data; goals 80x, +1 %")
    print(table(("scale per", "bits", "outlier", "Mse, ms", "exhaustive, ms", "faster", "exact error"), rows))


def calibration_table(timed: Timed, runs: int, quick: bool) -> None:
    """Time the calibration of a network with each activation estimator, in small and in larger batches."""
    model, rows = resnet18(), list[list[str]]()
    captured = qfunc.capture()(model)
    sizes = ((1, 4),) if quick else ((4, 4), (1, 16))
    for count, size in sizes:
        data = [torch.randn(size, 3, 224, 224) for _ in range(count)]

        def floats(data: list[Tensor] = data) -> None:
            with torch.inference_mode():
                for batch in data:
                    captured(batch)

        works: dict[str, Work] = {"float": floats}
        for name, estimator in every_estimator().items():
            quantized = qfunc.quantize(edit.activations(estimator=estimator)(targets.tensorrt))(model)
            works[name] = lambda q=quantized, d=data: qfunc.calibrate(d, progress=False)(q)  # type: ignore[misc]
        times = timed(works, max(runs // 5, 1), 1)
        found = [[ms(times, n), ratio(times, n, "float")] for n in works]
        rows = [row + more for row, more in zip(rows or [[n] for n in works], found, strict=True)]
    heads = [text for count, size in sizes for text in (f"{count} of {size}, ms", "ratio")]
    print("\ncalibration of ResNet-18 for targets.tensorrt in batches: ratio to the float forward; goal 1.4")
    print(table(("activations' estimator", *heads), rows))


def float_table(timed: Timed, runs: int, quick: bool) -> None:
    """Compare small floats with torch's casts there and back."""
    x, rows = torch.randn(ACTIVATION), []
    kinds = ((E4M3FN, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2), (E4M3FNUZ, torch.float8_e4m3fnuz))
    for (fmt, dtype), name in zip(kinds, ("E4M3FN", "E5M2", "E4M3FNUZ"), strict=True):
        cast = lambda x, d=dtype: x.to(d).to(x.dtype)  # noqa: E731
        ours = lambda x, f=fmt: minifloat.nearest(x, f)  # noqa: E731
        torch.compiler.reset()
        compiled = torch.compile(ours, fullgraph=True)
        times = timed({"torch": forward(cast, x), "eager": forward(ours, x), "compiled": forward(compiled, x)}, runs)
        rows.append([name, ms(times, "torch"), ratio(times, "eager", "torch"), ratio(times, "compiled", "torch")])
    print("\nnearest value of a small float: ratio to torch's cast there and back")
    print(table(("format", "torch, ms", "eager", "compiled"), rows))


TABLES: dict[str, Callable[[Timed, int, bool], None]] = {
    "fake": fake_table, "functions": function_table, "estimators": estimator_table, "search": search_table,
    "calibration": calibration_table, "floats": float_table,
}  # fmt: skip


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--threads", type=int, help="torch threads; default: torch's choice")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for machines with other load")
    parser.add_argument("--quick", action="store_true", help="fewer cases and runs")
    parser.add_argument("--only", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    timed = partial(interleaved, clock=time.process_time if options.clock == "cpu" else time.perf_counter)
    # torch._dynamo instantiates each autograd.Function that it traces, and warns about that.
    warnings.filterwarnings("ignore", message=".*should not be instantiated", category=DeprecationWarning)
    for name in options.only:
        TABLES[name](timed, 5 if options.quick else options.runs, options.quick)


if __name__ == "__main__":
    main()
