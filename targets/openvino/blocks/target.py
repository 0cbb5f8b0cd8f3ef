"""OpenVINO on x86-64 with AVX-512 VNNI, compressed weights: linear layers with 4 or 8 bits in blocks; all else in float.

The CPU plugin quantizes the input of such a layer to int8 at run time, with one scale for 32 entries of K: this is its
default, DYNAMIC_QUANTIZATION_GROUP_SIZE 32.  A layer with one output is computed in float.  INFERENCE_PRECISION_HINT is f32,
because the default computes everything in bfloat16 on CPUs that have it.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    FLOAT32, Algorithm, Attr, BrgemmChunks, Build, DynamicProduct, Int, Kernel, Op, PerBlock, Refuse, Rule, Runtime, Scale,
    Scheme, Target, cpus,
)  # fmt: skip
from qfunc.specs.arguments import made, of_kind
from qfunc.specs.formats import MATMUL_4BITS
from qfunc.targets.openvino.blocks.lowering import OpenVinoBlocksLowering
from qfunc.targets.openvino.blocks.runner import OpenVinoBlocksRunner

GROUP = 32
INPUT = Scheme(Int(8, low=-127), Scale(PerBlock(-1, GROUP), dynamic=True), division=False)
PRODUCT = DynamicProduct(INPUT, multiplier="last", scales="inside", lanes=BrgemmChunks())
LAYERS = Op("linear") & ~Attr("out_features", 1)
REALS = (("input", (FLOAT32,)), ("weight", (Int(8), Int(8, signed=False))), ("output", (FLOAT32,)))
IN_FLOAT = "openvino 2026.4, measured: inputs are quantized only where 32 divides the block of the weight"


def openvino_blocks(bits: int = 4, block: int = 128, scheme: Scheme = MATMUL_4BITS) -> Target:
    """Return the target for weights of 4 or 8 bits in blocks, a multiple of 32, in a scheme such as `MATMUL_4BITS_AFFINE`.

    >>> openvino_blocks(4, 64).rules[0].weight.scale.shared
    PerBlock(-1, size=64)
    """
    symmetric = of_kind("openvino_blocks, scheme", scheme, Scheme).symmetric
    width = made("openvino_blocks, bits", Int, bits, signed=symmetric)
    shared = made("openvino_blocks, block", PerBlock, -1, block)
    return Target(
        name=f"openvino_w{bits}_block{block}",
        rules=(
            Rule(
                LAYERS,
                input=INPUT,
                weight=evolve(scheme, format=width, scale=evolve(scheme.scale, shared=shared)),
            ),
        ),
        kernels=(Kernel(LAYERS, PRODUCT, formats=REALS),),
        legality=()
        if block % GROUP == 0 and bits in (4, 8)
        else (Refuse(Op("linear"), because=IN_FLOAT, do="Choose a block of 32, 64 or 128 and 4 or 8 bits."),),
        runtime=Runtime("openvino", ">=2026.4", cpus.x86_64_vnni, "oneDNN", OpenVinoBlocksRunner(), (Build(cpus.x86_64_vnni),)),
        lowering=OpenVinoBlocksLowering(),
        source=(
            "openvino 2026.4.1 on x86-64 with AVX-512 VNNI, measured: scales, rounding, order and chunks of sums",
            "OpenVINO, CPU device: weight decompression, dynamic quantization, ov::hint::dynamic_quantization_group_size",
            "oneDNN, jit_brgemm_inner_product_utils: nb_ic_blocking, the largest divisor up to 64 of K / 16",
        ),
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
    )
