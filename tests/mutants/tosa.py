"""Breakages of the files for TOSA and of its arithmetic, caught by a reader of its format and by Python's integers."""

from mutants.mutation import Mutation

FILE = "tests/lowering/tosa/test_tosa.py::test_the_file_holds_the_models_qparams_and_codes"

TOSA = (
    Mutation(
        "tosa-drops-the-zero-point-of-the-output", "qfunc.targets.tosa.rescale:to_codes",
        "rescale(graph, acc, unclamped, pair, output_zero=qparams_of(out)[1])",
        "rescale(graph, acc, unclamped, pair)",
        FILE,
    ),
    Mutation(
        "tosa-multiplier-is-of-one-factor", "qfunc.targets.tosa.rescale:scale_ratio",
        "ratio = ratio * np.float64(factor)",
        "pass",
        FILE,
    ),
    Mutation(
        "tosa-convolves-without-the-zero-point", "qfunc.targets.tosa.linear:_convolution",
        "op, [x, weight, bias, *zeros(graph, qparams_of(x)[1], 0)], acc, pad=pad",
        "op, [x, weight, bias, *zeros(graph, 0, 0)], acc, pad=pad",
        FILE,
    ),
    Mutation(
        "tosa-linear-without-the-zero-point", "qfunc.targets.tosa.linear:linear",
        "[image, ohwi_weight, bias, *zeros(graph, qparams_of(x)[1], 0)]",
        "[image, ohwi_weight, bias, *zeros(graph, 0, 0)]",
        FILE,
    ),
    Mutation(
        "tosa-takes-any-sum", "qfunc.targets.tosa.rescale:require_range",
        "if bool((max_sums >= limit).any()) or",
        "if",
        "tests/lowering/tosa/test_tosa.py::test_sums_beyond_what_a_rescale_takes_are_refused",
    ),
    Mutation(
        "tosa-matmul-broadcasts", "qfunc.targets.tosa.linear:matmul",
        "if a.shape[:-2] != b.shape[:-2]:",
        "if False:",
        "tests/lowering/tosa/test_tosa.py::test_what_has_no_form_is_refused_by_deploy",
    ),
    Mutation(
        "tosa-nearest-by-any-factor", "qfunc.targets.tosa.shape:nearest",
        'if fields["alignCorners"] or any(b % a for a, b in sizes):',
        'if fields["alignCorners"]:',
        "tests/lowering/tosa/test_tosa.py::test_what_has_no_form_is_refused_by_deploy",
    ),
    Mutation(
        "tosa-real-values-are-any-codes", "qfunc.targets.tosa.builder:TosaBuilder.codes_for",
        "if real.index not in self.real or qparams is None:",
        "if real.index not in self.real:",
        "tests/lowering/tosa/test_tosa.py::test_what_has_no_form_is_refused_by_deploy",
    ),
    Mutation(
        "tosa-takes-any-cast", "qfunc.targets.tosa.target:CREATED",
        ' & Attr("created", True)',
        "",
        "tests/lowering/tosa/test_tosa.py::test_what_has_no_form_is_refused_by_quantize",
    ),
    Mutation(
        "tosa-norms-keep-the-surplus", "qfunc.numerics.kernels.fixed_rows:norm_fixed",
        "length = (squares - surplus + k.epsilon)",
        "length = (squares + k.epsilon)",
        "tests/numerics/test_fixed_norm.py::test_norms_are_the_integers_of_their_definition",
    ),
    Mutation(
        "tosa-shares-are-cut-off", "qfunc.targets.tosa.composed.softmax:softmax",
        "i.right(i.right(product, 22, rounds=False), over, rounds=True)",
        "i.right(i.right(product, 22, rounds=False), over, rounds=False)",
        "tests/lowering/tosa/test_tosa_rows.py::test_rows_are_what_the_reference_model_computes",
    ),
    Mutation(
        "average-of-centred-codes-stays-there", "qfunc.numerics.kernels.activations:average_inside",
        "return (round_by(total / count, rounding) + offset).clamp(low, high).float()",
        "return round_by(total / count, rounding).clamp(low, high).float()",
        "tests/numerics/test_activations.py::test_codes_are_averaged_with_their_zero_point",
    ),
    Mutation(
        "rational-places-are-cut-off", "qfunc.numerics.kernels.resize:_rational_places",
        'before = torch.div(position, n, rounding_mode="floor")',
        'before = torch.div(position, n, rounding_mode="trunc")',
        "tests/numerics/test_activations.py::test_rational_weights_are_those_of_the_places",
    ),
    Mutation(
        "rational-sums-round-away", "qfunc.numerics.kernels.resize:_resize_rational",
        'm, e, ["half_up"]).float()',
        'm, e, ["half_away"]).float()',
        "tests/numerics/test_activations.py::test_integer_weights_of_neighbours",
    ),
    Mutation(
        "tosa-squares-by-a-table", "qfunc.targets.tosa.functions:formula",
        "if any(sum(name in codes for name in node.input) > 1 for node in nodes):",
        "if False:",
        "tests/lowering/tosa/test_tosa_ops.py::test_halves_become_the_codes_that_the_reference_model_computes",
    ),
    Mutation(
        "tosa-turns-from-one-past-the-end", "qfunc.targets.tosa.shape:slices",
        "x.shape[axis] - 1 - begin[axis]",
        "x.shape[axis] - begin[axis]",
        "tests/lowering/tosa/test_tosa_ops.py::test_functions_and_moves_at_halves_are_what_the_reference_model_computes",
    ),
)  # fmt: skip
