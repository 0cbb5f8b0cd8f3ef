"""ggml's products on x86-64 of rows, quantized while a layer runs, and weights in blocks of llama.cpp's types.

The products of codes are summed in integers within a block, and in float32 over the blocks: in 8 lanes, or in one if the
weight is repacked.
"""

from attrs import evolve

from qfunc.specs import (
    FLOAT16, DynamicProduct, Int, LaneOffset, Lanes, MinimumSums, Multiple, PerBlock, Scale, Scheme, TokenGroups, TokenTiles,
)  # fmt: skip

BLOCK, BLOCK_K = PerBlock(-1, 32), PerBlock(-1, 256)
INPUT = Scheme(Int(8, low=-127), Scale(BLOCK, format=FLOAT16, rounded="after", dynamic=True), division=False)
INPUT_K = evolve(INPUT, scale=Scale(BLOCK_K, dynamic=True))
ROWS = DynamicProduct(INPUT, multiplier="both", scales="inside", lanes=Lanes(8, 4))
ROWS_K = evolve(ROWS, input=INPUT_K, multiplier="first")
WITH_MINIMUMS = evolve(ROWS, minimums=MinimumSums(rounded=FLOAT16))
REPACKED_K = evolve(ROWS_K, lanes=Lanes(), minimums=MinimumSums(), groups=TokenGroups(4, part=64))
EIGHTS = Multiple("out_features", 8)

# Type of the weight -> (a condition of the layer, or None; its product), of which the first holds: ggml 0.20 for AVX2.
PRODUCTS = {
    "Q8_0": ((None, ROWS),),
    "Q5_0": ((None, ROWS),),
    "Q4_0": ((EIGHTS, evolve(ROWS, lanes=Lanes())), (None, ROWS)),
    "Q5_1": ((None, WITH_MINIMUMS),),
    "Q4_1": ((None, WITH_MINIMUMS),),
    "MXFP4": ((EIGHTS, evolve(ROWS, lanes=Lanes())), (None, evolve(ROWS, lanes=Lanes(16, 4, rest="after")))),
    "Q6_K": ((None, evolve(ROWS_K, offset=LaneOffset(32, run=32))),),
    "Q5_K": ((None, evolve(ROWS_K, minimums=MinimumSums())),),
    "Q4_K": ((EIGHTS, REPACKED_K), (None, evolve(ROWS_K, minimums=MinimumSums(Lanes(4, 64))))),
    "Q3_K": ((None, ROWS_K),),
    "Q2_K": ((None, evolve(ROWS_K, minimums=MinimumSums(Lanes(8, 32), inside=True))),),
}

_TILED = {
    kind: tuple(
        (of, evolve(product, sequences="apart") if product.groups else evolve(product, tiles=TokenTiles(8), sequences="apart"))
        for of, product in products
    )
    for kind, products in PRODUCTS.items()
    if products[0][1].input == INPUT_K
}
_REPACKED_2 = evolve(REPACKED_K, groups=TokenGroups(4, part=128), sequences="apart")

# As `PRODUCTS`, in llama.cpp for AVX-512 VNNI with ggml 0.25, which computes each sequence as a batch of its own.
PRODUCTS_OF_DECODERS = PRODUCTS | _TILED | {"Q2_K": ((EIGHTS, _REPACKED_2), *_TILED["Q2_K"])}
