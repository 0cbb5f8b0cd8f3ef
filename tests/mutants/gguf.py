"""Breakages of GGUF's blocks and files and of ggml's arithmetic, caught without ggml."""

from mutants.mutation import Mutation

BLOCKS = "tests/numerics/test_blocks.py::test_integer_blocks_follow_their_formulas"
BYTES = "tests/lowering/gguf/test_gguf_blocks.py::test_a_block_by_hand"
SUPER = "tests/lowering/gguf/test_gguf_blocks.py::test_a_super_block_of_q4_k_by_hand"
FOUND = "tests/numerics/test_block_searches.py::test_codes_of_minimums"
TILES = "tests/numerics/test_tiles.py::test_many_tokens_are_added_in_tiles"
APART = "tests/numerics/test_tiles.py::test_sequences_apart_have_groups_of_their_own"
MIXES = "tests/lowering/gguf/test_mixes.py::test_more_bits_go_to_the_first_and_last_blocks_and_each_third_between"
FILE = "tests/lowering/gguf/test_gguf_files.py::test_a_file_by_its_bytes"
GRAPH = "tests/lowering/gguf/test_gguf_files.py::test_the_graph_computes_the_network_with_the_weights_of_the_file"

CACHED = "tests/numerics/test_ggml_attention.py::test_tokens_after_a_cache_see_what_they_see_in_one_batch"

GGUF = (
    Mutation(
        "llama-cpp-cache-of-the-tokens-alone", "qfunc.targets.ggml.attention:attend_with_cache",
        "end = int(places[-1]) + 1",
        "end = len(places)",
        CACHED,
    ),
    Mutation(
        "llama-cpp-angles-from-zero", "qfunc.targets.ggml.attention:_rotated",
        "angles(positions, head_size, base)",
        "angles(positions - positions[0], head_size, base)",
        CACHED,
    ),
    Mutation(
        "gguf-codes-of-the-stored-scale", "qfunc.numerics.scales:_hardware_scale",
        'if rule.rounded == "after":',
        'if rule.rounded == "never":',
        BLOCKS,
    ),
    Mutation(
        "gguf-the-negative-of-equal-extremes", "qfunc.numerics.qparams:observed",
        'if scheme.scale.equals == "negative" or not x.numel():',
        "if True:",
        BLOCKS,
    ),
    Mutation(
        "gguf-values-by-the-scale-of-the-codes", "qfunc.numerics.scales:stored_scale",
        'if scheme.scale.rounded == "before":',
        "if True:",
        BLOCKS,
    ),
    Mutation(
        "gguf-halves-of-minimums-are-left-out", "qfunc.targets.ggml.types:_pack",
        "if minimum is None else [_half(scale), _half(minimum)]",
        "if minimum is None else [_half(scale), _half(scale)]",
        BYTES,
    ),
    Mutation(
        "gguf-high-bits-of-the-wrong-integers", "qfunc.targets.ggml.super_blocks:_sixes",
        "(other >> 4) << 6",
        "(other >> 5) << 6",
        SUPER,
    ),
    Mutation(
        "gguf-codes-above-minimums-are-floors", "qfunc.numerics.search.minimums:codes_of_ends",
        "* inverse[..., None] + 0.5)",
        "* inverse[..., None])",
        FOUND,
    ),
    Mutation(
        "gguf-tiles-scale-their-minimums", "qfunc.numerics.sums.tiles:tiled_sums",
        "fma(sums, minimum[:, at].expand_as(sums), inner)",
        "inner + sums * minimum[:, at]",
        TILES,
    ),
    Mutation(
        "gguf-groups-across-sequences", "qfunc.numerics.sums.tiles:tokens",
        'sequences == "together"',
        'sequences != "neither"',
        APART,
    ),
    Mutation(
        "gguf-last-blocks-have-no-more-bits", "qfunc.targets.ggml.llama_cpp.mixes:_more_bits",
        "7 * blocks // 8",
        "8 * blocks // 8",
        MIXES,
    ),
    Mutation(
        "gguf-neighbours-in-one-byte", "qfunc.targets.ggml.types:_pack",
        "low[..., :_HALF] | low[..., _HALF:] << 4",
        "low[..., ::2] | low[..., 1::2] << 4",
        BYTES,
    ),
    Mutation(
        "gguf-data-without-padding", "qfunc.targets.ggml.file:_padded",
        "-(-size // _ALIGNMENT) * _ALIGNMENT",
        "size",
        FILE,
    ),
    Mutation(
        "gguf-products-without-bias", "qfunc.targets.ggml.rewrite:with_products",
        "        if bias:\n            nodes.append",
        "        if not bias:\n            nodes.append",
        GRAPH,
    ),
)  # fmt: skip
