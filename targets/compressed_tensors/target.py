"""vLLM and SGLang on GPUs: checkpoints of compressed-tensors, linear layers in INT4, INT8, FP8, MXFP4 or NVFP4.

Weights of INT4, MXFP4 and NVFP4 have scales of blocks.  Inputs stay as they are ("A16"), or the kernels quantize them: with one
scale a token, by one static scale that is calibrated, or in blocks of FP4, whose scales in NVFP4 are within a static one.  All
else stays in float; the engines compute it in the dtype of the model, bfloat16 as a rule.  Keep the head in float,
edit.skip(edit.name("lm_head")): they do not look for its codes.

Layers that read the same tensor are one product in vLLM, with one scale of the whole weight: `fused_readers`.

INT8 products are exact: y = s_x (s_w acc) + bias in float32, the last two steps fused, which the engine then rounds to the
model's dtype.  The order in which tensor cores add products of floats is not published.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    BFLOAT16, FLOAT32, Algorithm, DynamicProduct, Int, Kernel, Op, PerBlock, PerChannel, PerToken, Rule, Runtime, Scale, Scheme,
    Target, Unknown, ZeroPoint,
)  # fmt: skip
from qfunc.specs.arguments import entry, made
from qfunc.specs.formats import E2M1, E4M3FN, E8M0, MXFP4_ROUNDED, NVFP4
from qfunc.targets.compressed_tensors.lowering import CompressedTensorsLowering
from qfunc.targets.compressed_tensors.runner import TransformersRunner

SMALLEST = 1 / (448 * 512)
INT4 = Scheme(Int(4), Scale(PerBlock(-1, 128), format=BFLOAT16, divisor="half_range"))
INT4_AFFINE = Scheme(Int(4), Scale(PerBlock(-1, 128), format=BFLOAT16), ZeroPoint())
INT8 = Scheme(Int(8, low=-127), Scale(PerChannel()))
INT8_INPUT = Scheme(Int(8, low=-127), Scale(PerToken(), dynamic=True), division=False)
FP8 = Scheme(E4M3FN)
FP8_INPUT = Scheme(E4M3FN, division=False)
FP8_CHANNELS = Scheme(E4M3FN, Scale(PerChannel()))
FP8_TOKENS = Scheme(E4M3FN, Scale(PerToken(), dynamic=True, low=SMALLEST))
NVFP4_POWER = evolve(NVFP4, scale=evolve(NVFP4.scale, within=Scale(power_of_two=True)))
NVFP4_INPUT = evolve(NVFP4_POWER, scale=evolve(NVFP4_POWER.scale, dynamic=True))
MXFP4_INPUT = Scheme(E2M1, Scale(PerBlock(-1, 32), format=E8M0, dynamic=True))
SCHEMES = {
    "W4A16": (INT4, None),
    "W4A16_ASYM": (INT4_AFFINE, None),
    "W8A8": (INT8, INT8_INPUT),
    "FP8": (FP8, FP8_INPUT),
    "FP8_CHANNEL": (FP8_CHANNELS, FP8_INPUT),
    "FP8_DYNAMIC": (FP8_CHANNELS, FP8_TOKENS),
    "MXFP4A16": (MXFP4_ROUNDED, None),
    "NVFP4A16": (NVFP4_POWER, None),
    "W4AFP8": (INT4, FP8_TOKENS),
    "MXFP4": (MXFP4_ROUNDED, MXFP4_INPUT),
    "NVFP4": (NVFP4_POWER, NVFP4_INPUT),
}
REALS = (("input", (FLOAT32,)), ("weight", (Int(8),)), ("output", (FLOAT32,)))
INT8_PRODUCT = Kernel(Op("linear"), DynamicProduct(INT8_INPUT, multiplier="both", fused_bias=True), formats=REALS)
FLOAT_PRODUCT = Kernel(Op("linear"), Unknown("the order in which tensor cores add products of floats is not published"))


def compressed_tensors(scheme: str, block: int = 128, config: str = "{}") -> Target:
    """Return the target for a scheme by its name in compressed-tensors.

    Args:
        scheme: "W4A16", "W4A16_ASYM", "W8A8" (INT8), "FP8" (static), "FP8_CHANNEL" (static, weights with a scale per output
            channel), "FP8_DYNAMIC", "W4AFP8", "MXFP4A16", "NVFP4A16", "MXFP4" or "NVFP4".
        block: The block of INT4, 32 or 128 for vLLM's kernels; 128 for "W4AFP8".
        config: The text of the model's config.json: `model.config.to_json_string()`.

    >>> compressed_tensors("W4A16", 32).rules[0].weight.scale.shared
    PerBlock(-1, size=32)
    """
    weight, inputs = entry("compressed_tensors, scheme", scheme, SCHEMES)
    in_int4 = weight in (INT4, INT4_AFFINE)
    shared = made("compressed_tensors, block", PerBlock, -1, block)
    return Target(
        name=f"compressed_tensors_{scheme.lower()}" + (f"_b{block}" if in_int4 else ""),
        rules=(
            Rule(
                Op("linear"),
                input=inputs,
                weight=evolve(weight, scale=evolve(weight.scale, shared=shared)) if in_int4 else weight,
            ),
        ),
        fused_readers=Op("linear"),
        kernels=(INT8_PRODUCT if scheme == "W8A8" else FLOAT_PRODUCT,),
        runtime=Runtime("vllm", ">=0.11", "NVIDIA GPU", runner=None if scheme in ("W8A8", "MXFP4") else TransformersRunner()),
        lowering=CompressedTensorsLowering(config),
        source=("compressed-tensors 0.20, quantization/quant_scheme.py: schemes; compressors/: tensors of each format",
                "vLLM, csrc, int8_quant_kernels.cu: the scale of a token is absmax / 127, its codes are R(x (127 / absmax))",
                "vLLM, csrc, fp8/common.cu: the scale of a token is absmax / 448, at least 1 / (448 512)",
                "vLLM, schemes/compressed_tensors_w4a4_nvfp4.py: the largest global scale of fused layers is that of all",
                "vLLM, csrc/quantization/fp4; TensorRT-LLM, quantization.cuh: scales of FP4 blocks, E4M3(absmax / (6 s2)); "
                "UE8M0 rounded up from absmax / 6",
                "vLLM, csrc/cutlass_extensions/epilogue, ScaledEpilogueBias: s_a (s_b acc) + bias in float32",
                "vLLM, model_executor/layers/quantization/compressed_tensors: what is loaded, how q, k and v are fused"),
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
    )  # fmt: skip
