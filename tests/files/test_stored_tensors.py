"""Tensors by their bytes: the files that safetensors writes and reads, and parts of networks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from qfunc.errors import FileError
from qfunc.files.part import Part, file_of_part, read_part
from qfunc.files.stored_tensor import StoredTensor, file_of_tensors, stored_tensors

TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.uint16: "U16", torch.uint32: "U32",
    torch.uint64: "U64",
}  # fmt: skip


def stored(tensor: Tensor) -> StoredTensor:
    """A tensor in memory."""
    return StoredTensor(
        TYPES[tensor.dtype], tuple(tensor.shape), lambda: tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    )


@st.composite
def tensors(draw: Any) -> dict[str, Tensor]:
    """Zeros and ones of some types and shapes, also without elements."""
    names = draw(st.lists(st.text('ab.\u00e9"', min_size=1), min_size=1, max_size=5, unique=True))
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return {n: torch.ones(draw(shapes)).to(draw(st.sampled_from(sorted(TYPES, key=str)))) for n in names}


@settings(deadline=None)
@given(tensors(), st.dictionaries(st.sampled_from("ab"), st.text("ab"), max_size=1))
def test_files_are_those_of_safetensors_and_are_read_again(drawn: dict[str, Tensor], metadata: dict[str, str]) -> None:
    content = b"".join(file_of_tensors({name: stored(t) for name, t in drawn.items()}, metadata))

    assert content == save(drawn, metadata or None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.safetensors")
        path.write_bytes(content)
        found, kept = stored_tensors(path)
        assert kept == metadata
        assert {n: (t.dtype, t.shape, t.nbytes, t.tobytes()) for n, t in found.items()} == {
            n: (TYPES[t.dtype], tuple(t.shape), t.nbytes, stored(t).tobytes()) for n, t in drawn.items()
        }


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    part = Part({"x": stored(torch.arange(3))}, {"layers": [{"bits": 4}]}, ("ids",), ("logits",), {"units": []})
    path = tmp_path / "part.safetensors"
    path.write_bytes(b"".join(file_of_part(part)))

    found = read_part(path)

    assert (found.notes, found.inputs, found.outputs, found.report) == (part.notes, ("ids",), ("logits",), {"units": []})
    assert found.tensors["x"].tobytes() == part.tensors["x"].tobytes()


def test_a_file_that_was_cut_is_refused_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(save({"x": torch.ones(4)})[:-1])

    with pytest.raises(FileError) as caught:
        stored_tensors(path)

    assert str(caught.value).startswith(f"{path}: ['x'].data_offsets: found bytes to 16, wanted at most 15")
