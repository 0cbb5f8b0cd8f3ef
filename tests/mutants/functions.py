"""Breakages of the functions that learn."""

from mutants.mutation import Mutation

STEPS, LSQ, LSQ_PLUS, PACT, TQT, DSQ, DOREFA, OWN = (
    f"qfunc/functions/{name}.py" for name in ("_steps", "lsq", "lsq_plus", "pact", "tqt", "dsq", "dorefa", "own_gradient")
)
GRADIENTS = "tests/functions/test_learned_gradients.py::"
LSQ_EQUATION = GRADIENTS + "test_lsq_is_equations_3_and_5"
SOFT = GRADIENTS + "test_dsq_differentiates_the_soft_staircase"

FUNCTIONS = (
    Mutation("lsq-step-ignores-x", STEPS, "wide * level - through *", "wide * level - 0 * through *", LSQ_EQUATION),
    Mutation(
        "lsq-negative-scale-keeps-its-gradient", STEPS,
        "torch.where(scale < 0, -gradient, gradient)",
        "gradient",
        GRADIENTS + "test_a_scale_that_training_drove_below_zero_counts_by_its_magnitude",
    ),
    Mutation(
        "lsq-factor-without-the-count", LSQ,
        "(steps.sharing(x, scale, batch_axis) * steps.largest_level(scheme))",
        "steps.largest_level(scheme)",
        GRADIENTS + "test_the_gradient_of_the_scale_is_multiplied",
    ),
    Mutation(
        "lsq-plus-outside-less-the-zero-point", LSQ_PLUS,
        "total = total + outside * qparams.zero_point",
        "total = total + 0 * outside",
        GRADIENTS + "test_lsq_plus_is_the_papers_with_the_integer_offset",
    ),
    Mutation("pact-alpha-itself-passes", PACT, "wide < bottom, wide >= top", "wide < bottom, wide > top",
             GRADIENTS + "test_pact_is_equation_3"),
    Mutation("tqt-without-ln-2", TQT, " * math.log(2)", "", GRADIENTS + "test_tqt_is_equations_7_and_8"),
    Mutation("tqt-floor", TQT, "torch.ceil(log2_t)", "torch.floor(log2_t)", GRADIENTS + "test_tqt_is_equations_7_and_8"),
    Mutation("dsq-steepness", DSQ, "torch.log(2 / held - 1)", "torch.log(2 / held)", SOFT),
    Mutation("dsq-lower-bound", DSQ, "to_low = 1 - slope - to_high", "to_low = 1 - to_high", SOFT),
    Mutation(
        "dorefa-maximum-is-a-constant", DOREFA,
        "most = squashed.abs().amax()",
        "most = squashed.detach().abs().amax()",
        GRADIENTS + "test_dorefa_differentiates_tanh_and_the_maximum",
    ),
    Mutation(
        "dorefa-magnitude-is-a-constant", DOREFA,
        "kept = split.abs().amax(axes)",
        "kept = split.detach().abs().amax(axes)",
        GRADIENTS + "test_dorefa_differentiates_the_magnitude_that_it_keeps",
    ),
    Mutation(
        "dorefa-loses-the-magnitude", "qfunc/recipes.py",
        "function = DoReFa(largest=None)",
        "function = DoReFa()",
        "tests/training/test_training.py::test_recipes_begin_near_the_trained_network",
    ),
    Mutation(
        "own-gradient-summed-twice", OWN,
        "if gradient.shape == parameter.shape:",
        "if False:",
        "tests/functions/test_with_gradient.py::test_gradients_may_come_in_the_parameters_shape_or_not_at_all",
    ),
)  # fmt: skip
