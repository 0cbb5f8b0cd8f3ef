"""A Llama of billions of parameters from shards on disk to a packed file: memory, seconds a layer, and a kill on the way.

    python benchmarks/streaming.py --folder DIR [--layers 26 --width 3200 --inner 8640 --heads 32 --vocabulary 32000]

The weights are random, in bfloat16 shards, one a layer; with the default sizes 3.4 billion.  They are streamed twice, each
time in a process of its own (Linux), the second of which is killed by SIGKILL in the middle and started again.  "peak" is the
most resident memory of the process, "base" that before the stream begins.  Needs the extra `transformers`, and disk for the
shards and three times the packed file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.torchvision_ops import shim

SEQUENCES, LENGTH = 2, 32


def config_of(options: Any) -> Any:
    """Return the configuration of the Llama."""
    shim()
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=options.width, intermediate_size=options.inner, num_hidden_layers=options.layers, use_cache=False,
        num_attention_heads=options.heads, num_key_value_heads=options.heads, vocab_size=options.vocabulary,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def network(options: Any) -> Any:
    """Return the Llama without weights."""
    config = config_of(options)
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        return LlamaForCausalLM(config)


def write_shards(options: Any, folder: Path) -> int:
    """Write random weights, one shard a layer; return their number."""
    model, places, total = network(options), {}, 0
    shards: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[2] if name.startswith("model.layers.") else "outside"
        shards.setdefault(f"model-{layer}.safetensors", {})[name] = parameter
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for file, parameters in shards.items():
        tensors = {n: drawn(p, generator) for n, p in parameters.items()}
        save_file(tensors, folder / file, {"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        total += sum(t.numel() for t in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return total


def drawn(parameter: Any, generator: torch.Generator) -> Any:
    """Return random weights that keep the size of activations, and ones for norms."""
    if parameter.ndim == 1:
        return torch.ones(parameter.shape, dtype=torch.bfloat16)
    return (torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5).bfloat16()


def stream(options: Any, shards: Path, output: Path) -> None:
    """Stream in this process, after printing its memory."""
    import qfunc
    from qfunc import targets
    from qfunc.specs import edit

    config = config_of(options)
    if options.target.startswith("Q"):
        target = targets.gguf(options.target, targets.runtimes.decoder_config(config))
    else:
        described = targets.compressed_tensors(options.target, 32, config=config.to_json_string())
        target = edit.skip(edit.name("lm_head"))(described)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, options.vocabulary, (SEQUENCES, LENGTH), generator=generator)
    rounding = partial(qfunc.gptq, progress=False) if options.gptq else None
    made = qfunc.stream(
        target, shards, output, [{"input_ids": ids}], progress=False, rounding=rounding, states=qfunc.StatesOnDisk()
    )
    model = network(options)
    print(status(os.getpid(), "VmRSS"), flush=True)
    made(model)


def status(process: int, field: str) -> int:
    """Return a field of the status of a process in bytes; 0 after its end."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def run(arguments: list[str], output: Path, kill_after: int | None = None) -> dict[str, Any]:
    """Stream in a process of its own; kill it after so many parts."""
    parts, start = output.with_name(f"{output.name}.parts"), time.perf_counter()
    child = subprocess.Popen([sys.executable, __file__, *arguments, "--stream", str(output)], stdout=subprocess.PIPE, text=True)
    peak, times, seen = 0, [], len(list(parts.glob("part-*")))
    while child.poll() is None:
        time.sleep(0.1)
        peak = max(peak, status(child.pid, "VmHWM"))
        count = len(list(parts.glob("part-*"))) if not output.exists() else seen
        times += [time.perf_counter() - start] * max(count - seen, 0)
        seen = max(seen, count)
        if kill_after is not None and seen >= kill_after and time.perf_counter() - start > times[-1] + 1:
            child.send_signal(signal.SIGKILL)
            child.wait()
            return {"killed": seen}
    assert child.returncode == 0
    assert child.stdout is not None
    steps = sorted(b - a for a, b in pairwise(times))
    return {"base": int(child.stdout.read()), "peak": peak, "seconds": time.perf_counter() - start,
            "layer": steps[len(steps) // 2] if steps else 0.0, "first": times[0], "parts": len(times)}  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def main() -> None:
    """Print one line a run, and whether the files are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    for name, size in (("layers", 26), ("width", 3200), ("inner", 8640), ("heads", 32), ("vocabulary", 32000)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--target", default="W4A16", help="a scheme of compressed-tensors, or a type of GGUF")
    parser.add_argument("--gptq", action="store_true")
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shards = options.folder / f"shards-{options.layers}-{options.width}"
    if options.stream:
        stream(options, shards, options.stream)
        return
    if not shards.exists():
        print(f"parameters: {write_shards(options, shards):,}", flush=True)
    on_disk, arguments = sum(p.stat().st_size for p in shards.iterdir()), sys.argv[1:]
    print(f"shards: {on_disk / 2**20:,.0f} MB", flush=True)
    whole, resumed = options.folder / "uninterrupted", options.folder / "resumed"
    for output in (whole, resumed):
        shutil.rmtree(output, ignore_errors=True)
        shutil.rmtree(output.with_name(f"{output.name}.parts"), ignore_errors=True)
    first = run(arguments, whole)
    size = sum(p.stat().st_size for p in whole.iterdir())
    print(
        f"{options.target}: {size / 2**20:,.0f} MB; base {first['base'] / 2**20:,.0f} MB, peak {first['peak'] / 2**20:,.0f} MB"
    )
    print(
        f"seconds: {first['seconds']:.0f}, a layer {first['layer']:.1f}, to the end of the first {first['first']:.1f}",
        flush=True,
    )
    print(run(arguments, resumed, options.layers // 2 + 1), flush=True)
    again = run(arguments, resumed)
    print(f"resumed: {again['parts']} parts, {again['seconds']:.0f} s, peak {again['peak'] / 2**20:,.0f} MB")
    print("byte-equal:", digests(whole) == digests(resumed))


if __name__ == "__main__":
    main()
