"""Draw networks, run them on the real runtime of a target, and print what differs.

python -m qfunc.testing.fuzz --target litert --seed 0 --count 100 --jobs 2 --file litert.jsonl
torchrun --nproc-per-node 4 -m qfunc.testing.fuzz --target litert --seed 0 --count 100
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from tqdm import tqdm

from qfunc.errors import QfuncError
from qfunc.execution.distributed import ranks
from qfunc.execution.progress import track
from qfunc.specs import Target
from qfunc.testing.fuzz.campaign import Result, campaign, failed_elsewhere, read_results, runnable_target
from qfunc.testing.fuzz.outcome import summary
from qfunc.testing.shares import gather_results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if any network failed, 2 if the command could not run."""
    parsed = _parser().parse_args(arguments)
    if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(days=1))
        try:
            return _main(parsed)
        finally:
            dist.destroy_process_group()
    return _main(parsed)


def _main(parsed: argparse.Namespace) -> int:
    processes = ranks(None)
    first = processes is None or processes.rank() == 0
    seeds = range(parsed.seed, parsed.seed + parsed.count)

    def begin(rank: int, number: int) -> tuple[Target, list[Result]]:
        target = runnable_target(parsed.target)
        before = read_results(parsed.file, parsed.target) if parsed.file and first else []
        return target, [r for r in before if r.seed in seeds]

    try:
        target, results = gather_results(begin, processes, failed_elsewhere)[0]
        left = sorted(set(seeds) - {r.seed for r in results})
        shown = {r.outcome.signature for r in results}
        running = campaign(
            parsed.target, target, left, jobs=parsed.jobs, limit=parsed.limit, shrinking=parsed.shrink, known=shown
        )  # fmt: skip
        for result in track(running, parsed.target, "network", first, total=len(left)):
            results.append(result)
            if parsed.file and first:
                with parsed.file.open("a", encoding="utf-8") as file:
                    print(result.line(), file=file)
            if result.outcome.bad and result.outcome.signature not in shown:
                shown.add(result.outcome.signature)
                if first:
                    tqdm.write(_failure(result))
    except QfuncError as e:
        print(f"qfunc: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    if first:
        print(summary(parsed.target, [(r.outcome, r.edited) for r in results]))
    return int(any(r.outcome.bad for r in results))


def _failure(result: Result) -> str:
    outcome = result.outcome
    told = f"{outcome.kind} at {outcome.stage}: {outcome.error} {outcome.message}"
    return f"\n# seed {result.seed}: {' '.join(told.split())[:600]}\n{result.script}\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m qfunc.testing.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", required=True, help="a target with a runtime, such as litert")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--count", type=int, default=20, help="the number of networks (20)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a network (60)")
    parser.add_argument("--shrink", type=float, default=90.0, help="seconds to shrink each kind of failure (90)")
    parser.add_argument("--file", type=Path, help="lines of JSON to append to; seeds in it are not run again")
    return parser


if __name__ == "__main__":
    sys.exit(main())
