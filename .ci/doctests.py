"""Runs the examples in the docstrings of every module of the library."""

from __future__ import annotations

import doctest
import importlib
import sys

import torch
from modules import modules


def main() -> int:
    """0 if every example gives what it shows."""
    attempted = failed = 0
    for name in modules():
        torch.manual_seed(0)
        result = doctest.testmod(importlib.import_module(name))
        attempted, failed = attempted + result.attempted, failed + result.failed
    print(f"{len(modules())} modules, {attempted} examples, {failed} failed")
    return 1 if failed or not attempted else 0


if __name__ == "__main__":
    sys.exit(main())
