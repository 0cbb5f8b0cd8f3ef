"""The formats of `benchmarks/language_models.py`, as targets of qfunc and as arguments of llm-compressor and AutoRound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from qfunc import targets
from qfunc.specs import Target
from qfunc.specs.formats import MATMUL_4BITS_AFFINE


@frozen
class Cell:
    """A format: `weights` and `inputs` are arguments of compressed-tensors' `QuantizationArgs`, `auto_round` of `AutoRound`."""

    name: str
    target: Target
    weights: Mapping[str, Any]
    auto_round: Mapping[str, Any]
    inputs: Mapping[str, Any] | None = None


def _integers(bits: int, block: int) -> Cell:
    return Cell(
        f"W{bits}, blocks of {block}",
        targets.onnxruntime_nbits(bits, block, 0, MATMUL_4BITS_AFFINE),
        {"num_bits": bits, "type": "int", "symmetric": False, "strategy": "group", "group_size": block},
        {"bits": bits, "group_size": block, "sym": False},
    )


def _with_inputs(target: Target) -> Target:
    # Inputs in the format of the weights, as compressed-tensors simulates them; kernels round their scales up.
    (rule,) = target.rules
    inputs = evolve(rule.weight, scale=evolve(rule.weight.scale, dynamic=True))
    return evolve(target, name=f"{target.name}_inputs", rules=(evolve(rule, input=inputs),), lowering=None)


_FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True}
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}

CELLS = (
    *(_integers(bits, block) for block in (32, 128) for bits in (4, 3, 2)),
    Cell(
        "W4A8, blocks of 32",
        evolve(targets.executorch_8da4w(32), lowering=None),  # XNNPACK's files take embeddings, not tokens
        {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
        {"bits": 4, "group_size": 32, "sym": True, "act_bits": 8, "act_group_size": -1, "act_sym": False, "act_dynamic": True},
        {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "token", "dynamic": True},
    ),
    Cell(
        "FP8",
        targets.compressed_tensors("FP8_DYNAMIC"),
        {**_FLOAT8, "strategy": "channel"},
        {"bits": 8, "data_type": "fp", "group_size": -1, "act_bits": 8, "act_data_type": "fp", "act_group_size": -1,
         "act_sym": True, "act_dynamic": True},
        {**_FLOAT8, "strategy": "token", "dynamic": True},
    ),
    Cell(
        "MXFP4",
        targets.compressed_tensors("MXFP4A16"),
        {**_FLOAT4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        {"bits": 4, "data_type": "mx_fp", "group_size": 32},
    ),
    Cell(
        "NVFP4",
        targets.compressed_tensors("NVFP4A16"),
        {**_FLOAT4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
        {"bits": 4, "data_type": "nv_fp", "group_size": 16},
    ),
    Cell(
        "MXFP4, inputs too",
        _with_inputs(targets.compressed_tensors("MXFP4A16")),
        {**_FLOAT4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        {"bits": 4, "data_type": "mx_fp", "group_size": 32, "act_bits": 4, "act_data_type": "mx_fp", "act_group_size": 32,
         "act_sym": True, "act_dynamic": True},
        {**_FLOAT4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8", "dynamic": True},
    ),
    Cell(
        "NVFP4, inputs too",
        targets.compressed_tensors("NVFP4"),
        {**_FLOAT4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
        {"bits": 4, "data_type": "nv_fp", "group_size": 16, "act_bits": 4, "act_data_type": "nv_fp4_with_static_gs",
         "act_group_size": 16, "act_sym": True, "act_dynamic": True},
        {**_FLOAT4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn", "dynamic": "local",
         "observer": "static_minmax"},
    ),
)  # fmt: skip
"""Activations stay in float but for W4A8 and FP8, which quantize them with one scale a token at run time, and the last two,
which quantize them in the blocks of the weights.  NVFP4's scale of the tensor is a power of two here, not in other tools.
"""

__all__ = ["CELLS", "Cell"]
