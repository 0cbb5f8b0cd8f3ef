"""Breakages of the files for TOSA and of its arithmetic, caught by a reader of its format and by Python's integers."""

from mutants.mutation import Mutation

GRAPH, RESCALE, PRODUCTS, MOVES = (f"qfunc/lowering/tosa_{name}.py" for name in ("graph", "rescale", "products", "moves"))
CURVES, BILINEAR = "qfunc/numerics/fixed_curves.py", "qfunc/numerics/bilinear.py"
TESTS, NUMBERS = "tests/targets/test_tosa.py", "tests/numerics/test_fixed_curves.py"
FILE = f"{TESTS}::test_the_file_holds_the_models_qparams_and_codes"

TOSA = (
    Mutation(
        "tosa-drops-the-zero-point-of-the-output",
        RESCALE,
        "rescale(graph, acc, made, pair, made=of(out)[1])",
        "rescale(graph, acc, made, pair)",
        FILE,
    ),
    Mutation("tosa-multiplier-is-of-one-factor", RESCALE, "found = found * np.float64(factor)", "pass", FILE),
    Mutation(
        "tosa-convolves-without-the-zero-point",
        PRODUCTS,
        "op, [x, weight, bias, *zeros(graph, of(x)[1], 0)], acc, pad=pad",
        "op, [x, weight, bias, *zeros(graph, 0, 0)], acc, pad=pad",
        FILE,
    ),
    Mutation(
        "tosa-linear-without-the-zero-point",
        PRODUCTS,
        "[image, held, bias, *zeros(graph, of(x)[1], 0)]",
        "[image, held, bias, *zeros(graph, 0, 0)]",
        FILE,
    ),
    Mutation(
        "tosa-takes-any-sum",
        RESCALE,
        "if bool((largest >= room).any()) or",
        "if",
        f"{TESTS}::test_sums_beyond_what_a_rescale_takes_are_refused",
    ),
    Mutation(
        "tosa-matmul-broadcasts",
        PRODUCTS,
        "if a.shape[:-2] != b.shape[:-2]:",
        "if False:",
        f"{TESTS}::test_what_has_no_form_is_refused_by_deploy",
    ),
    Mutation(
        "tosa-nearest-by-any-factor",
        MOVES,
        'if fields["alignCorners"] or any(b % a for a, b in sizes):',
        'if fields["alignCorners"]:',
        f"{TESTS}::test_what_has_no_form_is_refused_by_deploy",
    ),
    Mutation(
        "tosa-real-values-are-any-codes",
        GRAPH,
        "if held.index not in self.real or qparams is None:",
        "if held.index not in self.real:",
        f"{TESTS}::test_what_has_no_form_is_refused_by_deploy",
    ),
    Mutation(
        "tosa-slopes-a-channel",
        "targets/tosa.py",
        'Refuse(Op("prelu"), because=PRO_INT, do="Use leaky_relu."),',
        "",
        f"{TESTS}::test_what_has_no_form_is_refused_by_quantize",
    ),
    Mutation(
        "average-of-centred-codes-stays-there",
        CURVES,
        "return (round_by(total / count, rounding) + off).clamp(low, high).float()",
        "return round_by(total / count, rounding).clamp(low, high).float()",
        f"{NUMBERS}::test_codes_are_averaged_with_their_zero_point",
    ),
    Mutation(
        "rational-places-are-cut-off",
        BILINEAR,
        'before = torch.div(at, n, rounding_mode="floor")',
        'before = torch.div(at, n, rounding_mode="trunc")',
        f"{NUMBERS}::test_rational_weights_are_those_of_the_places",
    ),
    Mutation(
        "rational-sums-round-away",
        BILINEAR,
        'm, e, ["half_up"]).float()',
        'm, e, ["half_away"]).float()',
        f"{NUMBERS}::test_integer_weights_of_neighbours",
    ),
)
