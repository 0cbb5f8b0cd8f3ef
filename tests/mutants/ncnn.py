"""Breakages of the target ncnn, caught by readers of its files and by its formulas in NumPy."""

from mutants.mutation import Mutation

FILE, PRODUCTS, WRITER = (f"qfunc/lowering/ncnn_{name}.py" for name in ("file", "products", "writer"))
REAL, EMULATED = "qfunc/numerics/ncnn_real.py", "qfunc/transforms/products.py"
FILES, RULES = "tests/targets/test_ncnn.py", "tests/targets/test_ncnn_rules.py"
READ = f"{FILES}::test_the_files_hold_the_models_qparams_and_codes"

NCNN = (
    Mutation(
        "ncnn-transposed-weights-by-inputs", "qfunc/lowering/ncnn_products.py",
        "value = weight.real.reshape(groups, -1, *weight.value.shape[1:]).swapaxes(1, 2)",
        "value = weight.real.reshape(groups, weight.value.shape[1], -1, *weight.value.shape[2:])",
        "tests/targets/test_ncnn_transposed.py::test_the_file_holds_each_output_s_weights[groups]",
    ),
    Mutation("ncnn-scales-instead-of-reciprocals", FILE, "np.float32(1) / np.asarray(scale", "np.asarray(scale", READ),
    Mutation("ncnn-weights-without-padding", FILE, "bytes(-len(held) % 4)", 'b""', READ),
    Mutation("ncnn-never-requantizes", PRODUCTS, "said[8] = one + 100 * requantizes", "said[8] = one", READ),
    Mutation("ncnn-kernel-turned", PRODUCTS, "1: kw, 11: kh,", "1: kh, 11: kw,", f"{FILES}::test_windows_are_said_as_they_are"),
    Mutation("ncnn-clips-what-codes-imply", WRITER, "or copies(node) or self.implied(node)", "or copies(node)", READ),
    Mutation(
        "ncnn-winograd-with-eight-bits", "targets/ncnn.py", "weight=evolve(WEIGHT, format=SIX)", "weight=WEIGHT",
        f"{FILES}::test_only_winograd_weights_have_six_bits",
    ),
    Mutation(
        "ncnn-multiplier-of-scales", EMULATED, "return 1 / ((1 / s_x) * (1 / s_w))", "return s_x * s_w",
        f"{RULES}::test_dense_convolutions_round_once_and_depthwise_ones_twice",
    ),
    Mutation(
        "ncnn-global-average-in-order", REAL, "(four[..., 0] + four[..., 2]) + (four[..., 1] + four[..., 3])", "four.sum(-1)",
        f"{RULES}::test_a_global_average_is_four_sums_then_the_rest_times_the_reciprocal",
    ),
    Mutation(
        "ncnn-padding-never-counts", REAL, "counts_all = count_include_pad and any(around)", "counts_all = False",
        f"{RULES}::test_an_average_is_in_window_order_and_where_padding_counts_times_the_reciprocal",
    ),
)  # fmt: skip
