"""Breakages of folding and fusing."""

from mutants.mutation import Mutation

NUMBERS = "tests/passes/test_fold_batch_norm.py::test_the_folded_numbers"
BEFORE = "tests/passes/test_fold_batch_norm_grid.py::test_a_norm_before_an_op[BatchNorm]"

FOLDING = (
    Mutation(
        "fold-without-eps", "qfunc.graph.channel_affine:_norm",
        "rsqrt(variance.detach().double() + eps)",
        "rsqrt(variance.detach().double())",
        NUMBERS,
    ),
    Mutation("fold-bias-unscaled", "qfunc.graph.linear_op:after", "bias * factor + shift", "bias + shift", NUMBERS),
    Mutation(
        "fold-mean-unscaled", "qfunc.graph.channel_affine:_norm",
        "shift = -mean.detach().double() * factor",
        "shift = -mean.detach().double()",
        NUMBERS,
    ),
    Mutation(
        "fold-gamma-dropped", "qfunc.graph.channel_affine:_norm",
        "factor if weight is None else factor * weight.detach().double()",
        "factor",
        NUMBERS,
    ),
    Mutation(
        "fold-groups-along-the-outputs", "qfunc.graph.linear_op:LinearOp.weight",
        "self._swap_in_out(stored, self.groups) if",
        "self._swap_in_out(stored, 1) if",
        "tests/passes/test_fold_batch_norm.py::test_folded[transposed, grouped]",
    ),
    Mutation(
        "fold-over-a-shared-weight", "qfunc.graph.constants:replace",
        "if len(old.users) + nodes.others(old) != 1:",
        "if False:",
        "tests/passes/test_fold_batch_norm.py::test_a_shared_weight_is_copied_where_not_the_same_is_folded_into_it",
    ),
    Mutation(
        "joined-whatever-is-folded", "qfunc.passes.share_folded_constants:SharedConstants.put",
        "self.signatures[op.node] += [",
        "[",
        "tests/passes/test_fold_batch_norm.py::test_a_shared_weight_is_copied_where_not_the_same_is_folded_into_it",
    ),
    Mutation(
        "copies-in-the-order-of-folding", "qfunc.passes.share_folded_constants:SharedConstants._assign_paths",
        "for op, source, value in zip(first, sources, values, strict=False):",
        "for op, source, value in zip(first, [attribute(op, slot) for op in first], values, strict=False):",
        "tests/passes/test_fold_batch_norm.py::test_a_shared_pair_stays_shared",
    ),
    Mutation(
        "shared-norms-fold-twice", "qfunc.graph.evaluation_form:evaluation_form",
        "if weight_node in fixed:",
        "if False:",
        "tests/training/test_shared_modules.py",
    ),
    Mutation(
        "fold-a-conv-that-is-read-twice", "qfunc.passes.fold_batch_norm:_Folding._fold_after",
        "if len(readers) > 1:",
        "if False:",
        "tests/passes/test_fold_batch_norm.py::test_a_conv_that_is_read_twice_is_not_folded",
    ),
    Mutation(
        "fold-before-padding", "qfunc.passes.fold_batch_norm:_Folding._fold_before",
        "if op.pads and",
        "if False and",
        "tests/passes/test_fold_batch_norm_grid.py::test_a_norm_that_shifts_does_not_fold_before_padding",
    ),
    Mutation("fold-before-without-the-shift", "qfunc.graph.linear_op:before", "bias + constant", "bias", BEFORE),
    Mutation(
        "fold-rounds-twice", "qfunc.graph.linear_op:after",
        "return weight * factor.reshape(",
        "return weight * factor.float().reshape(",
        "tests/passes/test_fold_batch_norm_grid.py::test_a_norm_behind_an_op[BatchNorm]",
    ),
    Mutation(
        "written-out-norm-keeps-its-sign", "qfunc.graph.channel_affine",
        "(-factor, c - shift)",
        "(factor, c - shift)",
        "tests/passes/test_fold_reversed_norms.py",
    ),
    Mutation(
        "own-fold-where-it-may-not", "qfunc.passes.fold_batch_norm:_Folding._step",
        "if fusion.when is None or matches(fusion.when, op, self.context):",
        "if True:",
        "tests/passes/test_fold_user_norms.py::test_when_holds_for_folding_too",
    ),
    Mutation(
        "own-fold-unchecked", "qfunc.passes.fold_batch_norm:_Folding._fold_step",
        "found = _call_fold(step, weight, bias, (*owner, *args), kwargs, self.context.fact(op.node).path)",
        "found: Any = step.fold(weight.clone(), bias.clone(), *owner, *args, **kwargs)",
        "tests/passes/test_fold_user_norms.py::test_what_the_function_returns_is_checked",
    ),
    Mutation(
        "own-fold-in-float32", "qfunc.passes.fold_batch_norm:_Folding._fold_step",
        "copy.deepcopy(module).double().eval()",
        "copy.deepcopy(module).train()",
        "tests/passes/test_fold_user_norms.py::test_the_module_is_in_evaluation_mode_and_float64",
    ),
    Mutation(
        "misses-of-what-fused", "qfunc.placement.fusion:match_fusions",
        "if root.get(m.step) is not m.node",
        "if True",
        "tests/placement/test_fusion.py::test_when_decides_by_structure",
    ),
    Mutation(
        "misses-of-what-must-follow", "qfunc.placement.fusion:_match_chain",
        "near = matching or ([] if step.optional else",
        "near = matching or ([] if True else",
        "tests/placement/test_fusion.py::test_near_misses_say_why",
    ),
    Mutation(
        "integer-units-forget-a-step", "qfunc.placement.kernels:integer_kernel",
        "elif (extra := _not_computed(group, kernel, context)) is not None:",
        "elif (extra := _not_computed(group, kernel, context)) == 0:",
        "tests/placement/test_fusion.py::test_an_integer_kernel_does_not_swallow_an_activation",
    ),
    Mutation(
        "weight-formulas-are-frozen", "qfunc.transforms.insert_quantizers:simulation",
        "insert_formulas(network, placement.formulas)",
        "insert_formulas(network, ())",
        "tests/passes/test_weight_formulas.py::test_gradients_are_those_of_a_straight_through_quantizer_behind_the_formula",
        case="standardised-fx-plain",
    ),
    Mutation(
        "weight-formulas-forget-the-folded-norm", "qfunc.passes.parameters.insert_weight_formulas:_replace",
        "value = value if factor is None else",
        "value = value if True else",
        "tests/passes/test_weight_formulas.py::test_gradients_are_those_of_a_straight_through_quantizer_behind_the_formula",
        case="standardised-fx-folded norm",
    ),
)  # fmt: skip
