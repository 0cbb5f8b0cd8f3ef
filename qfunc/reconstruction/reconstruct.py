"""reconstruct: round weights so as to minimize the error of each unit's output instead of the error of the weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution.batches import require_batches
from qfunc.execution.distributed import gather_counts, propagate_errors, ranks, require_group
from qfunc.execution.feed import feed_all
from qfunc.execution.progress import Progress
from qfunc.execution.time_budget import Budget
from qfunc.functions import AdaRound
from qfunc.graph.float_network import float_network
from qfunc.graph.input_limits.sizes import require_any_batch
from qfunc.graph.record import record_of
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.stages import require_float32
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.reconstruction.cache import Collector
from qfunc.reconstruction.checkpoint import Checkpoint
from qfunc.reconstruction.methods import Method
from qfunc.reconstruction.run_graph import Subgraph
from qfunc.reconstruction.sharing.inputs import gathered_inputs
from qfunc.reconstruction.sharing.parts import require_parts
from qfunc.specs.selectors import Selector, require_selector
from qfunc.transforms.batch_norm import fold_batch_norm
from qfunc.transforms.validate import describe, require_directory

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Model = TypeVar("Model", bound=nn.Module)


def reconstruct(
    method: Method,
    batches: Iterable[Any],
    progress: bool = True,
    *,
    select: Selector | None = None,
    memory: int = 2 << 30,
    seconds: float | None = None,
    resume: str | os.PathLike[str] | None = None,
    parts: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
) -> Callable[[Model], Model]:
    """Return a transform of a calibrated model that rounds weights down or up to minimize the error of each unit's output.

    Units (layers or blocks, see `qfunc.reconstruction`) are reconstructed in order.  The input of a unit comes from the
    network quantized so far, its target is the output of the float network.  The result is an ordinary calibrated model,
    which can be evaluated, emulated, deployed, saved and trained.  The quantizers of its weights store the rounding
    (`AdaRound`, fully decided); if scales of activations train, their quantizers store them.  A unit keeps its original
    codes if its loss over all images would increase otherwise.  The model itself is not changed.  Evaluation semantics,
    whatever the mode.

    Cost: besides the iterations, each op runs on each image once in float and twice quantized.  The same arguments give
    the same bits on one machine (on GPUs, as far as torch's kernels are deterministic).  A weight that several units read
    is rounded by the first.  Submodules quantized by `quantize(submodules=)` get their inputs from the float network.

    Args:
        method: `qfunc.adaround()`, `qfunc.brecq()`, `qfunc.qdrop()`, or another `Method`.
        batches: As for `calibrate`, with images of one size; they are kept until the end.  The papers use 1,024 images.
        progress: Show a progress bar with the loss on a terminal, else a line every 30 seconds.
        select: The ops with weights to round; other weights stay rounded to nearest.
        memory: Bytes for the units' inputs and outputs of all images; the rest goes to a temporary folder.
        seconds: The time for all of it. Units are reconstructed in order as long as there is time for the next one; all others
            stay as they were, and `qfunc.reconstruction.reconstructed` lists the ops that were rounded. None for no limit.
        resume: A directory for the results of finished units.  A later call with the same model, method and batches
            continues after them, and gives the same bits as an uninterrupted call.  Only the first process of a group uses it.
        parts: The numbers of batches of which the gradients are computed apart, g = sum_p (n_p / n) g_p for a mini-batch with
            n_p of its n images in part p, added in order in float64.  One process whose parts have the batches of several
            processes gives their bits.  None for one part.
        group: As for `calibrate`: the images come from all its processes, in order of rank, of which each needs one; a
            process keeps its own.  Mini-batches and dropped elements are those of one process, and all processes get the
            same bits: those of one process with their `parts`.
    Raises:
        CalibrationError: a model that is not calibrated, has no weights to round or parameters of 16 bits, a program
            exported for one batch size, fewer than three images, batches of different shapes, a loss that is NaN or infinite, a
            tensor between units without a batch axis, or one inside a unit and several parts, a directory with other
            content, no time for the first unit, parts of another number of batches, or an exception in another process.
        SpecError: no method; seconds that are not positive; a selector that matches no such op; a weight with a function
            that AdaRound cannot wrap; parts that are no numbers of batches; or a group that is none.

    >>> import qfunc
    >>> from qfunc import targets
    >>> _ = torch.manual_seed(0)
    >>> x, target = torch.randn(32, 8), targets.academic(2, 8)
    >>> net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).requires_grad_(False)
    >>> nearest = qfunc.calibrate([x])(qfunc.quantize(target)(net))
    >>> rounded = reconstruct(qfunc.adaround(iterations=100, rounding_lr=0.1), [x])(nearest)
    >>> bool((rounded(x) - net(x)).square().sum() < (nearest(x) - net(x)).square().sum())
    True
    """
    _require_method(method)
    require_batches(batches, "reconstruct", progress, "qfunc.reconstruct(method, batches)(model)")
    if select is not None:
        require_selector("reconstruct, select", select)
    if type(memory) is not int or memory < 0:
        do = "Write memory=4 << 30."
        raise SpecError(where="reconstruct, memory", found=repr(memory), wanted="a number of bytes", do=do)
    if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
        do = "Write seconds=600, or leave it out."
        raise SpecError(
            where="reconstruct, seconds", found=repr(seconds), wanted="a positive number of seconds, or None", do=do
        )
    if resume is not None:
        require_directory(resume, "reconstruct(method, batches, resume=)")

    require_parts(parts)
    require_group(group, "reconstruct")

    def transform(calibrated: Model) -> Model:
        start, processes = time.monotonic(), ranks(group)
        first = processes is None or processes.rank() == 0
        with torch.inference_mode(False), torch.no_grad():
            with propagate_errors(processes):
                models = require_submodules(calibrated, "calibrated", "reconstruct")
                for model in models.values():
                    require_any_batch(record_of(model), "reconstruct")
                    require_float32(model, "reconstruct")
                collectors, count = _collect(calibrated, models, batches)
            gather_counts((), count, list(models), processes, "reconstruct")
            inputs = {path: gathered_inputs(c, count, parts, processes) for path, c in collectors.items()}
            with propagate_errors(processes):
                graphs = {
                    path: Subgraph(fold_batch_norm()(model), method, inputs[path], select, memory, processes)
                    for path, model in models.items()
                }
                _require_work(list(graphs.values()), select)
                digests = {path: graph.digests() for path, graph in graphs.items()}
                estimate = sum(graph.estimate() for graph in graphs.values() if graph.count)
            _require_same(gather_counts(digests, 1, list(models), processes, "reconstruct")[0])
            with propagate_errors(processes):
                checkpoints = {path: Checkpoint(_within(resume, path) if first else None, digests[path]) for path in graphs}
            units = sum(graph.count for graph in graphs.values())
            budget = Budget(seconds, units, estimate, start)
            with Progress("reconstruct", units * method.iterations, "iteration", progress and first) as bar:
                bar.tell(f"reconstruct: {units} units of {method.iterations} iterations, about {estimate:.2g} s")
                for path, graph in graphs.items():
                    graph.run(checkpoints[path], _reporter(bar), budget)
            with propagate_errors(processes):
                result: Any = with_submodules(calibrated, {path: g.model for path, g in graphs.items()}, "reconstruct")
            gather_counts((), 1, ["the result"], processes, "reconstruct")  # each has ended
        return result  # type: ignore[no-any-return]

    arguments = {"method": method, "batches": batches, "progress": progress, "select": select, "memory": memory,
                 "seconds": seconds, "resume": resume, "parts": parts, "group": group}  # fmt: skip
    return Transform(reconstruct, arguments, transform)


def _collect(
    calibrated: nn.Module, models: Mapping[str, fx.GraphModule], batches: Iterable[Any]
) -> tuple[dict[str, Collector], int]:
    # The arguments of each model, and the number of batches.
    collectors = {path: Collector(float_network(model)) for path, model in models.items()}
    observers = {path: c.record if path == "" else c.observe for path, c in collectors.items()}
    count = feed_all(calibrated, observers, batches, "reconstruct", progress=False)
    if not count:
        do = "Pass a non-empty iterable, not one already used up."
        raise CalibrationError(where="reconstruct", found="no batches", wanted="at least one", do=do)
    return collectors, count


def reconstructed(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of the ops whose weights `reconstruct` rounded, in order: after a budget of time, those that it reached.

    Raises:
        CalibrationError: the model is not quantized.

    >>> import qfunc
    >>> from qfunc import targets
    >>> reconstructed(qfunc.quantize(targets.onnxruntime)(nn.Linear(2, 2)))
    ()
    """
    found = dict[str, None]()
    for part in require_submodules(model, "quantized", "reconstructed").values():
        for quantizer in quantizer_nodes(part):
            if isinstance(quantizer.module.site.function, AdaRound):
                found[quantizer.module.site.op] = None
    return tuple(found)


def _within(resume: str | os.PathLike[str] | None, path: str) -> str | os.PathLike[str] | None:
    return os.path.join(resume, path) if resume is not None and path else resume


def _reporter(bar: Progress) -> Callable[[str, int, Tensor | None], None]:
    def report(name: str, iteration: int, loss: Tensor | None) -> None:
        if loss is None or iteration % 20 == 0:
            bar.describe(f"reconstruct {name}", "" if loss is None else f"loss {float(loss):.4g}")
        bar.advance(1 if loss is not None else iteration)

    return report


def _require_same(digests: Sequence[Mapping[str, Mapping[str, str]]]) -> None:
    for rank, other in enumerate(digests):
        for path, what in ((path, what) for path, each in other.items() for what in each):
            if other[path][what] != digests[0][path][what]:
                do = "Call reconstruct with the same arguments in all processes, except for the batches."
                where = f"reconstruct, ranks 0 and {rank}"
                raise CalibrationError(where=where, found=f"another {what}", wanted=f"the same {what}", do=do)


def _require_method(method: Any) -> None:
    if isinstance(method, Method):
        return
    called = callable(method) and not isinstance(method, type | nn.Module) and hasattr(method, "__name__")
    do = f"Call it: qfunc.{method.__name__}()." if called else "Write qfunc.reconstruct(qfunc.adaround(), batches)(model)."
    raise SpecError(where="reconstruct", found=describe(method), wanted="a method", do=do)


def _require_work(parts: Sequence[Subgraph], select: Selector | None) -> None:
    if any(part.count for part in parts):
        return
    if select is not None:
        paths = [path for part in parts for path in part.ops]
        raise SpecError(
            where="reconstruct, select",
            found=f"{select!r}, which matches no op whose weight is rounded",
            wanted="a selector of such ops",
            do=f"They are: {', '.join(paths[:8]) or 'none'}.",
        )
    found, wanted = "no weight in integers that a conv, linear, matmul or recurrent op reads", "at least one"
    do = "Quantize for a target that quantizes weights."
    raise CalibrationError(where="reconstruct", found=found, wanted=wanted, do=do)
