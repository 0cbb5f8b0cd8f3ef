"""Run each network in a separate process with a limit of processor time, and append its row to a file.  Resumable."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

Row = dict[str, Any]
Child = Callable[[str, Any], None]
"""Send the row of the named network: child(name, sender)."""


def add_options(parser: argparse.ArgumentParser, file: str, seconds: int) -> None:
    """Add the options of all zoo benchmarks, which `run` reads."""
    parser.add_argument("--only", default="", help="networks whose names contain one of these words, separated by commas")
    parser.add_argument("--file", type=Path, default=Path(file))
    parser.add_argument("--again", action="store_true", help="run failed networks again")
    parser.add_argument("--seconds", type=int, default=seconds, help="limit of processor time for each network")


def is_chosen(name: str, options: argparse.Namespace) -> bool:
    """Return True if --only selects a network."""
    return any(word in name for word in options.only.split(","))


def rows_of(file: Path) -> dict[str, Row]:
    """Map each network to its last row in a file."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {r["name"]: r for r in map(json.loads, lines)}


def run(names: Iterable[str], options: argparse.Namespace, child: Child, needs: str, bare: Row | None = None) -> dict[str, Row]:
    """Run the missing networks and return all rows of the file.  `bare` holds the fields of an unfinished row."""
    have = rows_of(options.file)
    missing = [name for name in names if name not in have or (options.again and not have[name]["passed"])]
    bar = tqdm(missing, "networks", disable=not sys.stderr.isatty())
    for name in bar:
        bar.set_postfix_str(name)
        have[name] = {**(bare or {}), **_row(name, options.seconds, child, needs)}
        with options.file.open("a") as out:
            out.write(json.dumps(have[name]) + "\n")
    return have


def _row(name: str, seconds: int, child: Child, needs: str) -> Row:
    # The process is forked from a server that has imported `needs` once.
    row = {"name": name, "passed": False, "stage": "process", "reason": ""}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([needs])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_limited, args=(child, seconds, name, sender))
    process.start()
    sender.close()
    try:
        return row | (receiver.recv() if receiver.poll(10 * seconds) else {"reason": f"took more than {10 * seconds} s"})
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return row | {"reason": f"took more than {seconds} s of processor time"}
        return row | {"reason": f"ended with {process.exitcode}"}
    finally:
        process.kill()


def _limited(child: Child, seconds: int, name: str, sender: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 10))
    child(name, sender)
