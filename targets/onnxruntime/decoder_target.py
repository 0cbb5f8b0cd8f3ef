"""ONNX Runtime's MatMulNBits: linear layers with weights of 2 to 8 bits in blocks; everything else in float.

With accuracy level 4, the default of onnxruntime-genai, the operator quantizes its input to int8 at run time, with one scale
a block of K; at lower levels it computes in float32: 4 bits in a kernel of their own, 2 and 8 bits as a product of float32.
The kernels are those of MLAS for AVX-512 with VNNI.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    FLOAT32, Algorithm, AnyInput, Build, DynamicProduct, FloatKernel, From, Fusion, FusionStep, Int, Kernel, Op, PerBlock,
    Refuse, RegisterLanes, Require, RequireUnit, Rule, Runtime, SameQParams, Scale, Scheme, Target, Tie, cpus,
)  # fmt: skip
from qfunc.specs.arguments import made, of_kind
from qfunc.specs.formats import MATMUL_4BITS
from qfunc.targets.onnxruntime.caches import AppendCodes, CachedAttention
from qfunc.targets.onnxruntime.experts import ExpertSums
from qfunc.targets.onnxruntime.float_matmul import FloatMatmul
from qfunc.targets.onnxruntime.float_products import MlasBlocks
from qfunc.targets.onnxruntime.lowering import MatMulNBitsLowering
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.onnxruntime.target import FLOAT_KERNELS, IN_FLOAT

BLOCK_PRODUCTS = (("input", (FLOAT32,)), ("weight", (Int(8), Int(8, signed=False))), ("output", (FLOAT32,)))
FLOAT_PRODUCTS = (
    ("input", (FLOAT32,)),
    ("weight", tuple(Int(n, signed=s) for n in (3, 4) for s in (True, False))),
    ("output", (FLOAT32,)),
)
DEQUANTIZED = (
    ("input", (FLOAT32,)),
    ("weight", tuple(Int(n, signed=s) for n in (2, 5, 6, 7, 8) for s in (True, False))),
    ("output", (FLOAT32,)),
)
BLOCKS = ((16, 32, 64, 128, 256), (32, 64, 128))
NO_KERNEL = (
    "onnxruntime 1.31, mlas/lib/qnbitgemm.cpp: blocks of 16, 32, 64, 128 and 256; of int8 products of 2 bits 32, 64, 128"
)
DO = "Choose another block, such as 32."
NO_LOOKUP = "onnxruntime 1.31, gather_block_quantized.cc: 2, 4 and 8 bits, in blocks of powers of 2, of at least 16"
DO_LOOKUP = "Choose another block, at most 8 bits, or embedding_bits=None."
LOOKUPS = "onnxruntime 1.31, GatherBlockQuantized: a table of embeddings"
DO_LOOKUPS = "Pass a model with embeddings, or drop embedding_bits."
NO_CACHE = "onnxruntime 1.31, group_query_attention.cc: kv_cache_bit_width is 8 or 4"
DO_CACHE = "Choose cache_bits=8, 4 or None."
NO_EXPERTS = "onnxruntime 1.31, moe_quantization_cpu.cc: products on int8 have weights of 3 to 8 bits, at level 4"
ATTENTION = "onnxruntime 1.31, GroupQueryAttention: causal attention to the cache of a qfunc.decoder, of its keys and values"
DO_ATTENTION = "Pass qfunc.decoder(length)(model).program, or drop cache_bits."
MIXTURES = (
    "onnxruntime 1.31, QMoE: experts down(silu(gate) up) times shares of one-hot rows, with weights of one form, whose "
    "inputs the block divides"
)
DO_MIXTURES = "Choose a block that divides them, or drop stacked_experts."
DO_EXPERTS = "Choose 3 bits or more and accuracy_level=4, or stacked_experts=False."
NO_WIDTH = "onnxruntime 1.31, matmul_nbits.cc: weights of 2 to 8 bits, in bytes, nibbles or pairs of bits"
DO_WIDTH = "Choose 2 to 8 bits."
ENDS = ("input", "output")
HELD = "onnxruntime 1.31, group_query_attention.cc: the cache is int8 or int4, with k_scale and v_scale"
IN_BLOCKS = Scheme(Int(8, low=-127), Scale(PerBlock(-1, 32), dynamic=True), division=False)

POSITIONS = Kernel(
    Op(("compare", "logic", "not", "cast", "index_put", "topk", "one_hot")), FloatKernel(), formats=IN_FLOAT
)  # nothing is rounded
SCALINGS = Op(("scale", "mul", "div"))  # MatmulScaleFusion
FACTOR = Fusion(Op("matmul"), (FusionStep(SCALINGS),))


def onnxruntime_nbits(
    bits: int = 4,
    block: int = 32,
    accuracy_level: int = 4,
    scheme: Scheme = MATMUL_4BITS,
    *,
    embedding_bits: int | None = None,
    cache_bits: int | None = None,
    threads: int = 2,
    stacked_experts: bool = False,
) -> Target:
    """Return the target for a width and a block of weights, in a scheme such as `MATMUL_4BITS_AFFINE`.

    The kernels have 2, 4 and 8 bits, and blocks of 16, 32, 64, 128 and 256; those of 2 bits 32, 64 and 128 at level 4.

    Products in float32 depend on the number of `threads` of the session, which the target's runner sets: those of attention,
    and of linear layers below level 4.  Of one thread, those of 3 and 4 bits are not described.

    With `stacked_experts`, at level 4, mixtures of experts are one QMoE each, in which a token passes its chosen experts only.

    With `embedding_bits`, tables of embeddings have the same blocks, in that width, for GatherBlockQuantized; else they stay in
    float.

    With `cache_bits`, 8 or 4, the cache of a `qfunc.decoder` is in codes with one static scale for keys and one for values, and
    attention to it is GroupQueryAttention; else both stay in float.

    `quantize` refuses models to which `embedding_bits`, `cache_bits` or `stacked_experts` makes no difference.

    >>> onnxruntime_nbits(8, 64).rules[0].weight.scale.shared
    PerBlock(-1, size=64, partial=True)
    """
    level = of_kind("onnxruntime_nbits, accuracy_level", accuracy_level, int)
    stacked = of_kind("onnxruntime_nbits, stacked_experts", stacked_experts, bool)
    symmetric = of_kind("onnxruntime_nbits, scheme", scheme, Scheme).symmetric
    shared = made("onnxruntime_nbits, block", PerBlock, -1, block, partial=True)
    inputs = evolve(IN_BLOCKS, scale=evolve(IN_BLOCKS.scale, shared=shared))

    width = made("onnxruntime_nbits, bits", Int, bits, signed=symmetric)
    weight = evolve(scheme, format=width, scale=evolve(scheme.scale, shared=shared))
    of_table = bits if embedding_bits is None else embedding_bits
    table = evolve(weight, format=made("onnxruntime_nbits, embedding_bits", Int, of_table, signed=symmetric))
    looked_up = block >= 16 and not block & (block - 1) and 1 < (embedding_bits or 8) <= 8
    product = made("onnxruntime_nbits, threads", FloatMatmul, threads=threads)
    in_float = (
        *((Kernel(Op("linear"), FloatKernel(function=MlasBlocks()), formats=FLOAT_PRODUCTS),) if threads > 1 else ()),
        Kernel(Op("linear"), product, formats=DEQUANTIZED),
    )
    tables = () if embedding_bits is None else (Rule(Op("embedding"), weight=table),)
    stackable = level == 4 and bits > 2
    held = made("onnxruntime_nbits, cache_bits", Int, 8 if cache_bits is None else cache_bits)
    cached = Scheme(held, division=False)
    cache = () if cache_bits is None else (Rule(Op("index_put"), input=cached, output=cached),)
    append = AppendCodes(held.qmin if held.bits == 4 else 0)  # bytes that are not written are 0: the least codes of 4 bits
    of_cache = (
        Kernel(Op("index_put"), append, integer_if=(SameQParams(),), formats=(("input", (held,)), ("output", (held,)))),
        Kernel(Op("cached_attention"), CachedAttention(), formats=(("input", (held, FLOAT32)), ("output", (FLOAT32,)))),
    )
    return Target(
        name=f"onnxruntime_w{bits}_block{block}_level{level}"
        + f"_e{embedding_bits}" * bool(tables)
        + f"_c{cache_bits}" * bool(cache)
        + f"_threads{threads}" * (threads != 2)
        + "_experts" * stacked,
        rules=(Rule(Op("linear"), input=None if level < 4 else inputs, weight=weight), *tables, *cache),
        fusions=(FACTOR,),
        ties=(Tie(Op("index_put"), ("input", "output"), "union"),) if cache else (),
        kernels=(
            *(of_cache if cache else ()),
            Kernel(
                Op("linear"),
                DynamicProduct(inputs, multiplier="both", scales="inside", lanes=RegisterLanes()),
                formats=BLOCK_PRODUCTS,
            ),
            *(in_float if level < 4 else ()),
            Kernel(Op("matmul") & ~AnyInput(From(SCALINGS)), product, formats=IN_FLOAT),
            POSITIONS,
            *FLOAT_KERNELS,
        ),
        legality=(
            *(() if block in BLOCKS[bits == 2 and level == 4] else (Refuse(Op("linear"), because=NO_KERNEL, do=DO),)),
            *((Refuse(Op("embedding"), because=NO_LOOKUP, do=DO_LOOKUP),) if tables and not looked_up else ()),
            *(() if bits <= 8 else (Refuse(Op("linear"), because=NO_WIDTH, do=DO_WIDTH),)),
            *((Refuse(Op("linear"), because=NO_EXPERTS, do=DO_EXPERTS),) if stacked and not stackable else ()),
            *((Refuse(Op("index_put"), because=NO_CACHE, do=DO_CACHE),) if cache and cache_bits not in (4, 8) else ()),
            *((RequireUnit(CachedAttention(), because=ATTENTION, do=DO_ATTENTION),) if cache else ()),
            *((RequireUnit(Op("embedding"), because=LOOKUPS, do=DO_LOOKUPS),) if tables else ()),
            *((RequireUnit(ExpertSums(threads), because=MIXTURES, do=DO_MIXTURES),) if stacked and stackable else ()),
            *((Require(Op("index_put"), ENDS, formats=(held,), zero_point=False, because=HELD),) if cache else ()),
        ),
        runtime=Runtime(
            "onnxruntime", ">=1.31", cpus.x86_64_vnni, "MLAS", OnnxRuntimeRunner(threads=threads), (Build(cpus.x86_64_vnni),)
        ),
        lowering=made(
            "onnxruntime_nbits, accuracy_level",
            MatMulNBitsLowering,
            accuracy_level=level,
            experts=ExpertSums(threads) if stacked and stackable else None,
        ),
        source=(
            "onnxruntime 1.31 CPUExecutionProvider, docs/ContribOperators.md, com.microsoft.MatMulNBits; measurements",
            "onnxruntime, contrib_ops/cpu/quantization/gather_block_quantized.cc: (q - z) s in float32",
            "onnxruntime, mlas/lib/qnbitgemm.cpp, sqnbitgemm_kernel_avx512vnni.cpp and the kernels that they call",
            "onnxruntime, mlas/lib/sqnbitgemm_kernel_avx512.cpp, and the order of sums of level 0, measured entry by entry",
            "onnxruntime, mlas/lib/sgemm.cpp and the kernels that it calls; core/optimizer/matmul_scale_fusion.cc",
            "onnxruntime-genai, builder options: int4_accuracy_level 4",
            "onnxruntime, contrib_ops/cpu/bert/gqa_attention_base.h; mlas/lib/qkv_quant_kernel_avx512vnni.cpp",
        ),
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
    )
