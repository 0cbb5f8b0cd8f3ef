"""Streamed equals whole, byte for byte: every kind of target, drawn decoders, and GPTQ."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qfunc
from tests.lowering.gguf.decoders import decoder
from tests.streaming.checkpoints import GGUF, SCHEMES, Shape, deployed, files, target_of

SHAPE = Shape()
TIED = Shape(decoder("qwen2", blocks=1), tied=True, shards=1, dtype=torch.float16)
GPTQ = partial(qfunc.gptq, progress=False)


def streamed(kind: str, shape: Shape, folder: Path, **options: Any) -> Path:
    """The folder that `stream` wrote."""
    made = qfunc.stream(
        target_of(kind, shape), shape.write(folder / "shards"), folder / "out", shape.batches, progress=False, **options
    )
    return made(shape.on_meta())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K_M", "W4A16_ASYM", "FP8", "NVFP4A16"])
def test_each_form_of_storage(kind: str, tmp_path: Path) -> None:
    shape = TIED if kind in ("Q4_1", "FP8", "W4A16_ASYM") else SHAPE

    found = files(streamed(kind, shape, tmp_path))

    assert found == deployed(target_of(kind, shape), shape)


@st.composite
def shapes(draw: Any) -> Shape:
    """Decoders of all architectures, of drawn sizes."""
    kv_heads, head_size = draw(st.integers(1, 2)), draw(st.sampled_from([16, 32]))
    groups = draw(st.integers(1, 2)) if kv_heads * head_size > 16 else 2  # blocks of 32 divide all heads together
    sizes = {
        "blocks": draw(st.integers(1, 3)), "width": 32 * draw(st.integers(1, 3)), "inner": 32 * draw(st.integers(1, 3)),
        "kv_heads": kv_heads, "heads": kv_heads * groups, "head_size": head_size,
        "vocabulary": draw(st.integers(2, 40)),
    }  # fmt: skip
    lengths, tied = draw(st.lists(st.integers(2, 9), min_size=1, max_size=3)), draw(st.booleans())
    return Shape(
        decoder(draw(st.sampled_from(["llama", "qwen2", "qwen3"])), tied=tied, **sizes), tied,
        draw(st.sampled_from([torch.float32, torch.bfloat16])), draw(st.integers(1, 3)), tuple(lengths),
    )  # fmt: skip


@pytest.mark.thorough
@settings(max_examples=2, deadline=None)
@given(shapes(), st.sampled_from([*GGUF, *SCHEMES]), st.booleans())
def test_drawn_decoders(shape: Shape, kind: str, rounded: bool) -> None:
    """GPTQ rounds no types with minimums."""
    rounding = GPTQ if rounded and kind not in ("Q5_1", "Q4_1") else None
    with tempfile.TemporaryDirectory() as folder:
        found = files(streamed(kind, shape, Path(folder), rounding=rounding))

    assert found == deployed(target_of(kind, shape), shape, rounding)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Q4_0", "FP8"])
def test_gptq_sees_what_the_rounded_layers_compute(kind: str, tmp_path: Path) -> None:
    """Q4_0 has a quantized table, FP8 static scales, which stay those of the float network."""
    rounding = partial(GPTQ, passes=1)

    found = files(streamed(kind, SHAPE, tmp_path, rounding=rounding, states=qfunc.StatesOnDisk()))

    assert found == deployed(target_of(kind, SHAPE), SHAPE, rounding)
    assert found != deployed(target_of(kind, SHAPE), SHAPE)


@pytest.mark.thorough
def test_the_report_names_all_tensors_and_files(tmp_path: Path) -> None:
    target = target_of("W4A16", SHAPE)

    out = streamed("W4A16", SHAPE, tmp_path)

    report = json.loads((out / "qfunc.json").read_text())
    assert sorted(tensor["name"] for tensor in report["tensors"]) == sorted(
        name for name, p in SHAPE.whole().named_parameters() if p.ndim == 2 and "embed" not in name
    )
    assert report["files"] == {name: hashlib.sha256(content).hexdigest() for name, content in files(out).items()}
    assert report["inputs"] == [{"shape": [2, 7], "dtype": "torch.int64"}]
    assert report["target"] == json.loads(qfunc.specs.to_json(target))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "shards"]
