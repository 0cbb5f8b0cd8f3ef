"""Four processes that train sharded models side by side; the first saves what came of it."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import qfunc
from qfunc import targets
from qfunc.errors import QfuncError
from tests.training.nets import CLASSES, batch, net
from tests.training.ranks import NOISY, made, noisy

CASES = ("lsq folded", "lsq_plus sync")
PROCESSES = 4
EXAMPLES = 8 // PROCESSES


def sharded(model: Any, policy: MixedPrecisionPolicy | None = None) -> Any:
    """The model itself, its scales in a group of their own."""
    fully_shard(qfunc.learned_quantizers(model))
    fully_shard(model, mp_policy=policy or MixedPrecisionPolicy())
    return model


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def steps(model: Any, optimizer: Any, seeds: range, part: slice, processes: int, run: Any = None) -> list[dict[str, Tensor]]:
    """The gradients of each step."""
    gradients = []
    for seed in seeds:
        optimizer.zero_grad()
        x = batch(seed).to(next(model.parameters()).dtype)[part]
        # FSDP takes the mean over processes.
        (F.cross_entropy((model if run is None else run)(x), CLASSES[part], reduction="sum") / 8 * processes).backward()
        gradients.append({n: whole(p.grad).clone() for n, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return gradients


def trained(model: Any, part: slice, processes: int, run: Any = None) -> dict[str, dict[str, Tensor]]:
    """The first gradients, and what two steps make of parameters and buffers."""
    gradients = steps(model, torch.optim.SGD(model.parameters(), lr=0.05), range(1, 3), part, processes, run)
    return {"gradients": gradients[0], "state": {n: whole(t) for n, t in model.state_dict().items()}}


def part_of(rank: int) -> slice:
    return slice(EXAMPLES * rank, EXAMPLES * (rank + 1))


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(qfunc.parameter_groups(model, lr=0.01))


def resumed(model: Any, fresh: Any, part: slice, folder: str) -> dict[str, Any]:
    """Four steps of a model, the last two of them again by one that was only quantized and read the checkpoint."""
    optimizer = adam(sharded(model))
    steps(model, optimizer, range(2), part, PROCESSES)
    values, moments = states.get_state_dict(model, optimizer)
    dcp.save({"model": values, "optimizer": moments}, checkpoint_id=Path(folder, "checkpoint"))
    wanted = steps(model, optimizer, range(2, 4), part, PROCESSES)
    other = adam(sharded(fresh))
    values, moments = states.get_state_dict(fresh, other)
    dcp.load({"model": values, "optimizer": moments}, checkpoint_id=Path(folder, "checkpoint"))
    states.set_state_dict(fresh, other, model_state_dict=values, optim_state_dict=moments)
    found = steps(fresh, other, range(2, 4), part, PROCESSES)
    fresh.eval()
    with torch.no_grad():
        before = fresh(batch(5))  # which stores quantized weights
        half = {n: t.clone() for n, t in fresh.state_dict().items()}
        states.set_model_state_dict(fresh, {n: 0.5 * t if t.is_floating_point() else t for n, t in half.items()})
        halved = fresh(batch(5))
        states.set_model_state_dict(fresh, half)
        again = fresh(batch(5))
    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {
        "gradients": (found, wanted),
        "state": states.get_model_state_dict(fresh, options=options),
        "evaluations": (before, halved, again),
    }


def refused(action: Any) -> str:
    try:
        action()
    except QfuncError as error:
        return str(error)
    return ""


def sharded_float() -> nn.Module:
    return fully_shard(nn.Linear(4, 4))


def scale_types(model: nn.Module) -> dict[str, torch.dtype]:
    """The types of a weight and of a scale while the model runs, if all else computes in bfloat16."""
    sharded(model, MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    found, quantizer = {}, model.get_submodule("quantizers.left.weight")

    def note(module: Any, given: Any) -> None:
        found.update(weight=given[0].dtype, scale=module.scale.dtype)

    quantizer.register_forward_pre_hook(note)
    model(batch(1))
    return found


def work(rank: int, folder: str) -> None:
    """One of the processes."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    models = {name: made(name) for name in CASES}  # before there is a group, which would calibrate together
    compiled, first, rounded = made("lsq folded"), noisy(), made("lsq folded").float()
    fresh = qfunc.quantize(NOISY, batch_norm=qfunc.TrainBatchNorm())(net()).train()
    meet = Path(folder, "meet").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=PROCESSES, timeout=timedelta(seconds=60))
    found: dict[str, Any] = {n: trained(sharded(m), part_of(rank), PROCESSES) for n, m in models.items()}
    run = torch.compile(sharded(compiled), backend="aot_eager") if rank == 0 else sharded(compiled)  # each compiles alike
    found["compiled"] = trained(compiled, part_of(rank), PROCESSES, run)
    found |= {"resumed": resumed(first, fresh, part_of(rank), folder), "types": scale_types(rounded)}
    cases = ((qfunc.emulate(targets.tensorrt), compiled), (qfunc.explain, compiled), (qfunc.capture(), sharded_float()))
    found["refused"] = [refused(lambda step=step, model=model: step(model)) for step, model in cases]
    if rank == 0:
        torch.save(found, Path(folder, "found.pt"))
    dist.destroy_process_group()
