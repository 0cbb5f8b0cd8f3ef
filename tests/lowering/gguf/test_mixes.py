"""Decoders in llama.cpp's mixes of types: the type and the bytes of each tensor, by hand and by its own quantizer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.specs import Op, Rule, edit
from qfunc.specs.formats import GGUF_Q5_1
from qfunc.targets.ggml.llama_cpp.mixes import KINDS, tensor_types
from tests.lowering.gguf.decoders import calibrated, decoder, float_file, tokens
from tests.lowering.gguf.ggml_graphs import INSTALLED, other_process, quantized_file

needs_llama = pytest.mark.skipif(
    not INSTALLED or importlib.util.find_spec("gguf") is None, reason="llama-cpp-python is not installed, or gguf"
)
MIXED = tuple(kind for kind in KINDS if kind not in ("Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1", "Q5_K", "Q4_K", "Q3_K"))
"""The kinds that llama.cpp's quantizer gives these tensors too: for a single type it takes another one for the head."""
WIDE = {"width": 256, "inner": 512, "head_size": 64, "blocks": 4}
NARROW = {"width": 64, "inner": 256, "blocks": 2}
DEEP = {"width": 32, "inner": 32, "heads": 8, "kv_heads": 2, "head_size": 8, "blocks": 33}


def types_of(kind: str, part: str, **sizes: Any) -> list[str | None]:
    """The types of a part of each block, or of the one tensor of this name."""
    d = decoder("llama", **{"width": 256, "inner": 256, "head_size": 64, **sizes})
    types = tensor_types(kind, d)
    names = [f"blk.{i}.{part}.weight" for i in range(d.blocks)] if part not in ("token_embd", "output") else [f"{part}.weight"]
    return [types.get(name) for name in names]


def test_more_bits_go_to_the_first_and_last_blocks_and_each_third_between() -> None:
    """Of 16 blocks: 0, 1, 14, 15, and 4, 7, 10 and 13."""
    found = types_of("Q4_K_M", "ffn_down", blocks=16)
    assert [i for i, kind in enumerate(found) if kind == "Q6_K"] == [0, 1, 4, 7, 10, 13, 14, 15]
    assert types_of("Q5_K_M", "attn_v", blocks=16) == [kind if kind == "Q6_K" else "Q5_K" for kind in found]
    assert set(types_of("Q4_K_M", "attn_q", blocks=16)) == {"Q4_K"}


def test_parts_that_small_mixes_spare() -> None:
    assert types_of("Q2_K", "attn_v", heads=8, kv_heads=2) == ["Q4_K"] * 2
    assert types_of("Q2_K", "attn_v") == ["Q3_K"] * 2
    assert types_of("Q3_K_M", "attn_v", blocks=3) == ["Q5_K", "Q5_K", "Q4_K"]
    assert types_of("Q4_K_S", "attn_v", blocks=5) == ["Q5_K"] * 4 + ["Q4_K"]
    assert types_of("Q3_K_L", "attn_output") == ["Q5_K"] * 2
    assert types_of("Q3_K_S", "ffn_down") == ["Q3_K"] * 2


def test_a_model_of_70_b_has_more_bits_for_its_few_values() -> None:
    assert set(types_of("Q4_K_M", "attn_v", blocks=80)) == {"Q5_K", "Q6_K"}
    assert set(types_of("Q4_K_M", "attn_v", blocks=80, kv_heads=4)) == {"Q4_K", "Q6_K"}


def test_the_head_has_six_bits_and_so_has_a_table_that_it_shares() -> None:
    assert types_of("Q4_K_M", "output") + types_of("Q4_K_M", "token_embd") == ["Q6_K", "Q4_K"]
    assert types_of("Q4_K_M", "token_embd", tied=True) == ["Q6_K"]
    assert types_of("Q4_K", "output") == ["Q4_K"]


@pytest.mark.parametrize(("kind", "smaller"), [("Q6_K", "Q8_0"), ("Q5_K", "Q5_1"), ("Q4_K", "Q5_0"), ("Q3_K", "Q4_0")])
def test_rows_that_256_does_not_divide_have_smaller_blocks(kind: str, smaller: str) -> None:
    assert types_of(kind, "attn_q", width=96) + types_of(kind, "ffn_down", width=96) == [smaller] * 2 + [kind] * 2
    assert types_of(kind, "attn_q", width=72) == [None, None]


@needs_llama
@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize(("architecture", "sizes"), [("llama", WIDE), ("qwen3", NARROW), ("llama", DEEP)])
def test_types_and_bytes_are_those_of_llama_cpp(kind: str, architecture: str, sizes: dict[str, int], tmp_path: Path) -> None:
    """Files of its quantizer, without an importance matrix; the deep decoder shares its head with the table."""
    import gguf

    tied = sizes is DEEP
    d = decoder(architecture, tied=tied, **sizes)
    model, target, network = calibrated(d, kind, tied=tied)
    (tmp_path / "float.gguf").write_bytes(float_file(network, d))
    (tmp_path / "ours.gguf").write_bytes(qfunc.deploy(target)(model).files["model.gguf"])

    other_process().apply(quantized_file, (str(tmp_path / "float.gguf"), str(tmp_path / "theirs.gguf"), kind))

    found, wanted = ({t.name: t for t in gguf.GGUFReader(tmp_path / f"{n}.gguf").tensors} for n in ("ours", "theirs"))
    assert {n: t.tensor_type.name for n, t in found.items()} == {n: t.tensor_type.name for n, t in wanted.items()}
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name].data, tensor.data, err_msg=name)


def test_rows_that_no_block_divides_are_refused() -> None:
    sizes = decoder("llama", width=72, inner=40, heads=9, kv_heads=9, head_size=8)
    with pytest.raises(SpecError) as caught:
        targets.gguf("Q4_K_M", sizes)
    assert str(caught.value) == (
        "LlamaCppLowering.decoder: found 'rows of 72', wanted a width that 32 divides. Leave such a decoder in float."
    )


def test_a_layer_in_another_type_than_the_mix_has_is_named() -> None:
    """A scheme that other tensors of the file have, with codes of as many bits."""
    d = decoder("llama", **NARROW)
    target, network = targets.gguf("Q5_K", d), calibrated(d, "Q8_0")[2]
    other = evolve(
        target, rules=(Rule(Op("linear") & edit.name("model.layers.0.mlp.down_proj"), weight=GGUF_Q5_1), *target.rules)
    )
    model = qfunc.calibrate([tokens(2, 7, d)], progress=False)(qfunc.quantize(other)(network))

    with pytest.raises(DeployError) as caught:
        qfunc.deploy(other)(model)

    assert str(caught.value) == (
        "tensor 'blk.0.ffn_down.weight': found blocks of 32, wanted blocks of Q5_K. "
        "Leave the schemes of the target as they are, or keep the layer in float by edit.skip."
    )
