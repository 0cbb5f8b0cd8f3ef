"""Tables of embeddings in blocks: each bit that ONNX Runtime's GatherBlockQuantized looks up, and the files."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.lowering.onnxruntime.session import Session
from qfunc.specs import Scheme
from qfunc.specs.formats import MATMUL_4BITS, MATMUL_4BITS_AFFINE
from qfunc.targets.onnxruntime.block_weights import packed
from tests.lowering.onnxruntime.test_float_kernels import WIDE

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
SCHEMES = pytest.mark.parametrize("scheme", [MATMUL_4BITS, MATMUL_4BITS_AFFINE], ids=["symmetric", "affine"])


class Words(nn.Module):
    """Rows of a table; with a head, also its products."""

    def __init__(self, rows: int, width: int, head: str = "") -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(rows, width), nn.Linear(width, rows, bias=False) if head else None
        if self.head is not None and head == "tied":
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        """[N, T] -> [N, T, K]."""
        x: Tensor = self.table(ids)
        return x if self.head is None else self.head(x)


def drawn(rows: int, width: int, seed: int, head: str = "") -> tuple[torch.export.ExportedProgram, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    words = Words(rows, width, head).eval()
    words.table.weight.data = torch.randn(rows, width, generator=generator) * 2.0 ** torch.randint(
        -9, 9, (rows, 1), generator=generator
    )
    ids = torch.randint(0, rows, (2, 5), generator=generator)
    return torch.export.export(words, (ids,)), ids


def calibrated(target: Any, program: Any, ids: Tensor) -> Any:
    return qfunc.calibrate([ids], progress=False)(qfunc.quantize(target)(program))


@SCHEMES
@given(
    bits=st.integers(2, 8), block=st.sampled_from([16, 32, 64]), width=st.integers(1, 100), rows=st.integers(2, 30),
    seed=st.integers(0, 2**16),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_every_bit_of_a_row_is_emulated(scheme: Scheme, bits: int, block: int, width: int, rows: int, seed: int) -> None:
    """Widths of 3 and 5 to 7 bits are stored in 4 and 8; of a row that fills no byte, the last columns are cut off."""
    target = targets.onnxruntime_nbits(4, block, scheme=scheme, embedding_bits=bits)
    program, ids = drawn(rows, width, seed)
    report = qfunc.verify(target)(made := calibrated(target, program, ids), [ids])
    assert (report.mismatches, report.disagreements) == (0, ())
    found = qfunc.deploy(target)(made).files["model.onnx"]
    stored = {t.name: list(t.dims) for t in onnx.load_from_string(found).graph.initializer}
    each = {2: 4, 3: 2, 4: 2}.get(bits, 1)
    assert stored["table.weight.codes.rows"] == [rows, -(-width // each)]
    assert "table.weight" not in stored


@pytest.mark.thorough
@given(
    bits=st.sampled_from([2, 4, 8]), affine=st.booleans(), shape=st.tuples(st.integers(1, 4), st.integers(1, 20)),
    data=st.data(),
)  # fmt: skip
@settings(max_examples=1000, deadline=None)
def test_the_operator_computes_the_difference_times_the_scale(
    bits: int, affine: bool, shape: tuple[int, int], data: Any
) -> None:
    """(q - z) s, rounded once, for scales of the whole range of float32; z is 2^(bits - 1) where the file has none."""
    rows, width = shape[0], shape[1] * 8 // bits
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    blocks = -(-width // 16)
    codes = generator.integers(0, 2**bits, (rows, width))
    scales = np.array(data.draw(st.lists(st.floats(width=32, allow_nan=False), min_size=rows * blocks, max_size=rows * blocks)))
    scales = scales.astype(np.float32).reshape(rows, blocks)
    zeros = generator.integers(0, 2**bits, (rows, blocks)) if affine else np.full((rows, blocks), 2 ** (bits - 1))
    arrays = {"rows": packed(codes, bits), "scales": scales} | ({"zeros": packed(zeros, bits)} if affine else {})
    names = ["rows", "ids", *list(arrays)[1:]]
    node = helper.make_node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", bits=bits, block_size=16)
    ends = [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [rows]), helper.make_tensor_value_info("y", 1, None)]
    stored = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph([node], "lookup", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    (found,) = Session(model.SerializeToString()).run([np.arange(rows)])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (codes - zeros.repeat(16, 1)[:, :width]).astype(np.float32) * scales.repeat(16, 1)[:, :width]
    assert found.tobytes() == expected.tobytes() or np.array_equal(found, expected, equal_nan=True)


@pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")
@pytest.mark.parametrize(("head", "bits"), [("own", 8), ("tied", 4), ("tied", 8)])
def test_a_head_may_share_the_table(head: str, bits: int) -> None:
    """Of another width, both have codes of their own."""
    target, (program, ids) = targets.onnxruntime_nbits(4, 32, embedding_bits=bits), drawn(20, 64, 3, head)
    made = calibrated(target, program, ids)
    report = qfunc.verify(target)(made, [ids])
    assert (report.mismatches, report.disagreements) == (0, ())
    graph = onnx.load_from_string(qfunc.deploy(target)(made).files["model.onnx"]).graph
    kinds = [n.op_type for n in graph.node if n.domain == "com.microsoft"]
    assert kinds == ["GatherBlockQuantized", "MatMulNBits"]


def test_tables_stay_in_float_by_default() -> None:
    target, (program, ids) = targets.onnxruntime_nbits(4, 32), drawn(20, 64, 3, "own")
    graph = onnx.load_from_string(qfunc.deploy(target)(calibrated(target, program, ids)).files["model.onnx"]).graph
    assert [n.op_type for n in graph.node if "Gather" in n.op_type] == ["Gather"]


def test_a_model_without_tables_is_refused() -> None:
    with pytest.raises(SpecError) as e:
        qfunc.quantize(targets.onnxruntime_nbits(4, 32, embedding_bits=8))(nn.Linear(64, 32))
    assert str(e.value) == (
        "target 'onnxruntime_w4_block32_level4_e8': found a model without a unit of Op('embedding'), wanted at least one: "
        "onnxruntime 1.31, GatherBlockQuantized: a table of embeddings. Pass a model with embeddings, or drop embedding_bits."
    )


@pytest.mark.parametrize(("bits", "block"), [(4, 24), (4, 8), (16, 32)])
def test_what_the_operator_lacks_is_refused(bits: int, block: int) -> None:
    program, _ = drawn(5, 64, 0)
    with pytest.raises(SpecError) as e:
        qfunc.quantize(targets.onnxruntime_nbits(8, block, embedding_bits=bits))(program)
    assert str(e.value) == (
        f"target 'onnxruntime_w8_block{block}_level4_e{bits}', op 'table': found the kind 'embedding', wanted an op that it "
        "runs: onnxruntime 1.31, gather_block_quantized.cc: 2, 4 and 8 bits, in blocks of powers of 2, of at least 16. "
        "Choose another block, at most 8 bits, or embedding_bits=None."
    )
