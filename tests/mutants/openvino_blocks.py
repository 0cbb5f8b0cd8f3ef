"""Breakages of OpenVINO's products with compressed weights."""

from mutants.mutation import Mutation

OPENVINO_BLOCKS = (
    Mutation(
        "verify-without-the-inputs-of-the-runtime-where-outputs-are-equal",
        "qfunc.transforms.verification.check:Verification._emulate",
        'any_mismatch("codes", "real")',
        'any_mismatch("codes")',
        "tests/lowering/openvino_cpu/test_openvino_blocks.py"
        "::test_a_layer_after_a_float_unit_is_not_blamed_where_the_outputs_are_equal",
    ),
    Mutation(
        "chunks-of-any-divisor", "qfunc.numerics.sums.chunks:chunk_size",
        "if divisor < _LEAST:",
        "if divisor < 2:",
        "tests/numerics/test_chunks.py::test_chunks_are_those_of_openvino",
    ),
    Mutation(
        "chunks-of-parts-of-blocks", "qfunc.numerics.sums.chunks:chunk_size",
        "elif chunk % block:",
        "elif False:",
        "tests/numerics/test_chunks.py::test_chunks_are_those_of_openvino",
    ),
    Mutation(
        "chunks-by-the-product-of-scales", "qfunc.numerics.sums.chunks:chunked_product",
        "fma(acc * s_x[:, at // group, None], scale[:, at // block].expand_as(acc), v)",
        "fma(acc, s_x[:, at // group, None] * scale[:, at // block], v)",
        "tests/numerics/test_chunks.py::test_each_step_is_rounded_as_stated",
    ),
    Mutation(
        "chunks-that-go-on", "qfunc.numerics.sums.chunks:chunked_product",
        "v = torch.zeros_like(total)\n",
        "v, total = total, torch.zeros_like(total)\n",
        "tests/numerics/test_chunks.py::test_each_step_is_rounded_as_stated",
    ),
    Mutation(
        "compressed-weights-with-zero-points-of-0", "qfunc.targets.openvino.blocks.lowering:OpenVinoBlocksLowering.lower",
        "del node.input[2:]",
        "pass",
        "tests/lowering/openvino_cpu/test_openvino_blocks.py"
        "::test_the_file_has_the_weights_of_the_simulation_and_no_quantizer_of_inputs",
    ),
    Mutation(
        "compressed-weights-signed-with-zero-points", "qfunc.arithmetic.block_weights:_unfit_chunks",
        "fmt.signed and",
        "False and",
        "tests/lowering/openvino_cpu/test_openvino_blocks.py::test_signed_weights_with_zero_points_are_refused",
    ),
)  # fmt: skip
