"""A law of every target that writes ONNX: the checker accepts the files, and ONNX Runtime loads and runs them as written.

    QFUNC_EXAMPLES=50 python -m pytest -n 0 tests/lowering/test_written_onnx_loads.py

draws so many networks a target. Graph optimizations are off, because the tools of vendors have their own.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import qfunc
from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.specs import Target
from qfunc.testing.grammar.families import program
from tests.lowering.drawn_law import EXAMPLES

WRITERS = ("k210", "nnie", "onnx_qnn", "onnxruntime", "ppl_cuda", "ppl_w8a16", "qdq", "qnn_htp", "snpe", "stpu", "tengine_u8",
           "tensorrt", "vitis")  # fmt: skip
SEEDS = range(41009, 41009 + (EXAMPLES or 2))


def deployed(target: Target, seed: int):
    """Return (the artifact of a drawn network, one batch); None instead of an artifact that is refused."""
    drawn = program(seed)
    namespace = drawn.build()
    batches = namespace["batches"]
    try:
        quantized = qfunc.quantize(target, batches[0])(namespace["model"])
        return qfunc.deploy(target)(qfunc.calibrate(batches, progress=False)(quantized)), batches[0]
    except QfuncError as e:
        if e.do.startswith("Report "):  # deploy found that it writes something else
            raise
        return None, batches[0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRITERS)
def test_the_checker_and_onnx_runtime_take_what_is_written(name):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for seed in SEEDS:
        artifact, batch = deployed(getattr(targets, name), seed)
        files = [] if artifact is None else [content for file, content in artifact.files.items() if file.endswith(".onnx")]
        assert files or artifact is None
        for content in files:
            onnx.checker.check_model(onnx.load_from_string(content))
            session = onnxruntime.InferenceSession(content, options)
            feeds = {i.name: np.asarray(v) for i, v in zip(session.get_inputs(), batch, strict=True)}
            assert all(torch.from_numpy(np.asarray(v)).isfinite().all() for v in session.run(None, feeds))
