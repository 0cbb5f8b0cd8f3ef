"""Training with simulated quantization under FSDP: a transformer of 100 M parameters, compiled, in two processes on the CPU.

    python benchmarks/fsdp.py [--processes 2] [--steps 6] [--width 1536] [--layers 3] [--vocabulary 5120]

Three runs of `torchrun` train the same student by LSQ on the same batches: one process, which accumulates the gradients of the
parts that the others have; several processes; and several of which the last kills itself after half of the steps.  The same
command, started again, goes on from the last checkpoint of `torch.distributed.checkpoint`; each step writes one.

The sum of two float32 numbers does not depend on their order, and its half is exact, so that two processes should give the bits
of one.  More parts are added in another order.  The third run must give the bits of the second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.fsdp import fully_shard

import qfunc
from qfunc import recipes, targets
from qfunc.analysis.report_format import table

SEQUENCE, BATCH = 64, 4


class Block(nn.Module):
    """A pre-norm block with causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, 64).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(SEQUENCE, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens(step: int, vocabulary: int) -> Tensor:
    """Return sequences that count up by 1 to 4 modulo 256, from random starts."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, 256, (BATCH, 1), generator=generator)
    return (start + torch.randint(1, 5, (BATCH, 1), generator=generator) * torch.arange(SEQUENCE + 1)) % min(256, vocabulary)


def student(options: argparse.Namespace) -> Any:
    """Return the model, each of its blocks quantized as a submodule, calibrated by all processes on the same batch."""
    torch.manual_seed(0)
    model = Transformer(options.vocabulary, options.width, options.layers)
    x = tokens(10_000, options.vocabulary)[:, :-1]
    parts = [*(f"blocks.{i}" for i in range(options.layers)), "head"]
    target = recipes.lsq()(targets.onnxruntime)
    quantized = qfunc.quantize(target, submodules=parts, example_inputs=(x,))(model)
    return qfunc.calibrate([x], progress=False)(quantized).train()


def train(options: argparse.Namespace) -> None:
    """Train in this process of `torchrun`; rank 0 writes a line for each step."""
    dist.init_process_group("gloo")
    rank, processes, folder = dist.get_rank(), dist.get_world_size(), Path(options.folder)
    torch.set_num_threads(1)
    model = student(options)
    elements = sum(p.numel() for p in model.parameters())
    for owner, name in (*((model.blocks, name) for name, _ in model.blocks.named_children()), (model, "head")):
        setattr(owner, name, fully_shard(torch.compile(getattr(owner, name))))
    fully_shard(model)
    optimizer = torch.optim.AdamW(qfunc.parameter_groups(model, lr=3e-4, quantizer_lr=3e-5))
    checkpoint, first = folder / "checkpoint", 0
    if (folder / "steps").exists():
        first = int((folder / "steps").read_text())
        values, moments = states.get_state_dict(model, optimizer)
        dcp.load({"model": values, "optimizer": moments}, checkpoint_id=checkpoint / str(first))
        states.set_state_dict(model, optimizer, model_state_dict=values, optim_state_dict=moments)
    count = options.processes
    parts = [slice(i * BATCH // count, (i + 1) * BATCH // count) for i in range(rank, count, processes)]
    for step in range(first, options.steps):
        start = time.monotonic()
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for part in parts:
            x = tokens(step, options.vocabulary)[part]
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            (loss / len(parts)).backward()
            total += loss.detach().double() / count
        optimizer.step()
        dist.all_reduce(total)
        seconds = time.monotonic() - start
        if options.kill is not None:
            if step == options.kill and first == 0 and rank == processes - 1:
                os.kill(os.getpid(), signal.SIGKILL)  # after the step, before its checkpoint: the step is lost
            values, moments = states.get_state_dict(model, optimizer)
            dcp.save({"model": values, "optimizer": moments}, checkpoint_id=checkpoint / str(step + 1))
            if rank == 0:
                (folder / "steps").write_text(str(step + 1))
                for old in (checkpoint / str(step)).glob("*"):
                    old.unlink()
        if rank == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            row = {"step": step, "loss": total.item(), "seconds": seconds, "peak": peak, "elements": elements, "first": first}
            with (folder / "losses.jsonl").open("a") as file:
                print(json.dumps(row), file=file)
    dist.barrier()
    dist.destroy_process_group()


def run(options: argparse.Namespace, processes: int, kill: int | None) -> list[dict[str, Any]]:
    """Return the rows of one run, without the steps that a kill undid."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += [__file__, "--folder", folder] + ([] if kill is None else [f"--kill={kill}"])
        command += [f"--{n}={getattr(options, n)}" for n in ("processes", "steps", "width", "layers", "vocabulary")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if kill is not None:
            ended = subprocess.run(command, check=False, env=environment, stderr=subprocess.DEVNULL)
            assert ended.returncode, "no process was killed"
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(folder, "losses.jsonl").read_text().splitlines()]
    return list({row["step"]: row for row in rows}.values())


def main() -> None:
    """Print the losses of the three runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("processes", 2), ("steps", 6), ("width", 1536), ("layers", 3), ("vocabulary", 5120)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--kill", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        train(options)
        return
    one, several = run(options, 1, None), run(options, options.processes, None)
    resumed = run(options, options.processes, options.steps // 2)
    print(f"{one[0]['elements'] / 1e6:.1f} M parameters, {BATCH} sequences of {SEQUENCE} tokens a step")
    rows = [
        [str(a["step"] + 1), f"{a['loss']:.6f}", f"{b['loss']:.6f}", f"{abs(a['loss'] - b['loss']) / a['loss']:.1e}",
         f"{c['loss']:.6f}"] for a, b, c in zip(one, several, resumed, strict=True)
    ]  # fmt: skip
    print(
        table(("step", "one process", f"{options.processes} processes", "relative difference", "killed and resumed"), rows, 120)
    )
    for name, each in (("one process", one), (f"each of {options.processes} processes", several)):
        print(f"{name}: {min(r['seconds'] for r in each):.1f} s a step, at most {each[-1]['peak']:.2f} GiB")
    print(f"the same losses in one process: {[r['loss'] for r in one] == [r['loss'] for r in several]}")
    print(
        f"resumed after step {max(r['first'] for r in resumed)}: {[r['loss'] for r in resumed] == [r['loss'] for r in several]}"
    )
    assert math.isfinite(several[-1]["loss"])


if __name__ == "__main__":
    main()
