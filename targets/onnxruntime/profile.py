"""The time of each operation of a model, by ONNX Runtime's own profile."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_RUNS, _WARM = 20, 3
_KERNEL = "_kernel_time"
_ADDED = re.compile(r"(_token_\d+|_nchwc)+$")
"""What the optimiser adds to the names of nodes that it replaces."""


def profile(model: bytes, inputs: Sequence[Any], threads: int, optimise: bool) -> dict[str, float]:
    """Return the seconds of each node of the optimised graph, the least of 20 runs, by the name that the file has for it.

    Nodes that the optimiser has added, such as Transpose, have names of their own.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feeds = {i.name: np.asarray(v) for i, v in zip(session.get_inputs(), inputs, strict=True)}
        for _ in range(_RUNS + _WARM):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        name = event["name"]
        if event.get("cat") == "Node" and name.endswith(_KERNEL):
            times[name.removesuffix(_KERNEL), event["args"].get("node_index", "")].append(event["dur"] * 1e-6)
    found: dict[str, float] = defaultdict(float)
    for (name, _), taken in times.items():
        found[_ADDED.sub("", name)] += min(taken[_WARM:] or taken)
    return dict(found)
