"""Breakages of the target ncnn, caught by readers of its files and by its formulas in NumPy."""

from mutants.mutation import Mutation

READ = "tests/lowering/ncnn_files/test_ncnn.py::test_the_files_hold_the_models_qparams_and_codes"

NCNN = (
    Mutation(
        "ncnn-transposed-weights-by-inputs", "qfunc.targets.ncnn.linear:deconv",
        "value = weight.real.reshape(groups, -1, *weight.value.shape[1:]).swapaxes(1, 2)",
        "value = weight.real.reshape(groups, weight.value.shape[1], -1, *weight.value.shape[2:])",
        "tests/lowering/ncnn_files/test_ncnn_transposed.py::test_the_file_holds_each_output_s_weights[groups]",
    ),
    Mutation(
        "ncnn-scales-instead-of-reciprocals", "qfunc.targets.ncnn.builder:reciprocal",
        "np.float32(1) / np.asarray(scale",
        "np.asarray(scale",
        READ,
    ),
    Mutation("ncnn-weights-without-padding", "qfunc.targets.ncnn.builder:tagged", "bytes(-len(data) % 4)", 'b""', READ),
    Mutation(
        "ncnn-never-requantizes", "qfunc.targets.ncnn.linear:write_product",
        "values[8] = one + 100 * requantizes",
        "values[8] = one",
        READ,
    ),
    Mutation(
        "ncnn-kernel-turned", "qfunc.targets.ncnn.linear:_parameters",
        "1: kw, 11: kh,",
        "1: kh, 11: kw,",
        "tests/lowering/ncnn_files/test_ncnn.py::test_windows_are_said_as_they_are",
    ),
    Mutation(
        "ncnn-clips-what-codes-imply", "qfunc.targets.ncnn.writer:Writer._passes",
        "return copies(node) or self.implied(node)",
        "return copies(node)",
        READ,
    ),
    Mutation(
        "ncnn-winograd-with-eight-bits", "qfunc.targets.ncnn.target:ncnn",
        "weight=evolve(WEIGHT, format=SIX)",
        "weight=WEIGHT",
        "tests/lowering/ncnn_files/test_ncnn.py::test_only_winograd_weights_have_six_bits",
    ),
    Mutation(
        "ncnn-multiplier-of-scales", "qfunc.arithmetic.float_requantize:FloatRequantize._terms",
        "m = (1 / s_x) * (1 / s_w)",
        "m = 1 / (s_x * s_w)",
        "tests/lowering/ncnn_files/test_ncnn_rules.py::test_convolutions_round_once_or_twice",
    ),
    Mutation(
        "ncnn-global-average-in-order", "qfunc.targets.ncnn.functions:mean_of_image",
        "(sums[..., 0] + sums[..., 2]) + (sums[..., 1] + sums[..., 3])",
        "sums.sum(-1)",
        "tests/lowering/ncnn_files/test_ncnn_rules.py::test_a_global_average_is_four_sums_then_the_rest_times_the_reciprocal",
    ),
    Mutation(
        "ncnn-padding-never-counts", "qfunc.targets.ncnn.functions:average",
        "counts_padding = count_include_pad and any(pads)",
        "counts_padding = False",
        "tests/lowering/ncnn_files/test_ncnn_rules.py::test_an_average_is_in_window_order_and_where_padding_counts_times_the_reciprocal",
    ),
    Mutation(
        "ncnn-ceil-mode-counts-all", "qfunc.targets.ncnn.functions:average",
        "if ceil_mode and not _fills(",
        "if False and not _fills(",
        "tests/lowering/ncnn_files/test_ncnn_rules.py::test_an_average_with_ceil_mode_counts_the_padding_only",
    ),
    Mutation(
        "ncnn-codes-overflow", "qfunc.targets.ncnn.writer:overflows",
        "return largest >= 2.0**30 * scale",
        "return False",
        "tests/lowering/ncnn_files/test_ncnn_moves.py::test_values_beyond_the_integers_saturate",
    ),
    Mutation(
        "ncnn-last-position-of-the-maximum", "qfunc.targets.ncnn.pooling:position",
        "np.arange(length, 0, -1, dtype=np.float32)",
        "np.arange(1, length + 1, dtype=np.float32)",
        "tests/lowering/ncnn_files/test_ncnn_moves.py::test_the_runtime_computes_each_op[moves]",
    ),
    Mutation(
        "ncnn-examples-always-first", "qfunc.targets.ncnn.session:Session",
        "np.stack(each, blob[2])",
        "np.stack(each, 0)",
        "tests/lowering/ncnn_files/test_ncnn_moves.py::test_codes_are_compared_where_the_examples_are_another_axis",
    ),
    Mutation(
        "ncnn-ratio-of-sizes-for-the-factor", "qfunc.targets.ncnn.shape:resize",
        "< 1e-4 * m for f",
        "< m for f",
        "tests/lowering/ncnn_files/test_ncnn_moves.py::test_the_runtime_computes_each_op",
    ),
)  # fmt: skip
