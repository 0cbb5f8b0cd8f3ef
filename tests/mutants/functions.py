"""Breakages of the functions that learn."""

from mutants.mutation import Mutation

LSQ_EQUATION = "tests/functions/test_learned_gradients.py::test_lsq_is_equations_3_and_5"
SOFT = "tests/functions/test_learned_gradients.py::test_dsq_differentiates_the_soft_staircase"

FUNCTIONS = (
    Mutation(
        "lsq-step-ignores-x", "qfunc.functions._steps:_of_part",
        "wide * level - through *",
        "wide * level - 0 * through *",
        LSQ_EQUATION,
    ),
    Mutation(
        "lsq-negative-scale-keeps-its-gradient", "qfunc.functions._steps:through_magnitude",
        "torch.where(scale < 0, -gradient, gradient)",
        "gradient",
        "tests/functions/test_learned_gradients.py::test_a_scale_that_training_drove_below_zero_counts_by_its_magnitude",
    ),
    Mutation(
        "lsq-factor-without-the-count", "qfunc.functions.lsq:factor_of",
        "(steps.elements_per_scale(x, scale, batch_axis) * steps.largest_level(scheme))",
        "steps.largest_level(scheme)",
        "tests/functions/test_learned_gradients.py::test_the_gradient_of_the_scale_is_multiplied",
    ),
    Mutation(
        "lsq-plus-outside-less-the-zero-point", "qfunc.functions.lsq_plus:_OffsetGradient.backward",
        "total = total + outside * qparams.zero_point",
        "total = total + 0 * outside",
        "tests/functions/test_learned_gradients.py::test_lsq_plus_is_the_papers_with_the_integer_offset",
    ),
    Mutation(
        "pact-alpha-itself-passes", "qfunc.functions.pact:_ClipGradient.backward",
        "wide < bottom, wide >= top",
        "wide < bottom, wide > top",
        "tests/functions/test_learned_gradients.py::test_pact_is_equation_3",
    ),
    Mutation(
        "tqt-without-ln-2", "qfunc.functions.tqt:_ThresholdGradient.backward",
        " * math.log(2)",
        "",
        "tests/functions/test_learned_gradients.py::test_tqt_is_equations_7_and_8",
    ),
    Mutation(
        "tqt-floor", "qfunc.functions.tqt:_hardware_qparams",
        "torch.ceil(log2_t)",
        "torch.floor(log2_t)",
        "tests/functions/test_learned_gradients.py::test_tqt_is_equations_7_and_8",
    ),
    Mutation(
        "dsq-steepness", "qfunc.functions.dsq:_SoftGradient.backward",
        "torch.log(2 / clamped_alpha - 1)",
        "torch.log(2 / clamped_alpha)",
        SOFT,
    ),
    Mutation(
        "dsq-lower-bound", "qfunc.functions.dsq:_SoftGradient.backward",
        "to_low = 1 - slope - to_high",
        "to_low = 1 - to_high",
        SOFT,
    ),
    Mutation(
        "dorefa-maximum-is-a-constant", "qfunc.functions.dorefa:DoReFa._transformed",
        "most = squashed.abs().amax()",
        "most = squashed.detach().abs().amax()",
        "tests/functions/test_learned_gradients.py::test_dorefa_differentiates_tanh_and_the_maximum",
    ),
    Mutation(
        "dorefa-magnitude-is-a-constant", "qfunc.functions.dorefa:DoReFa._transformed",
        "absmax = split.abs().amax(axes)",
        "absmax = split.detach().abs().amax(axes)",
        "tests/functions/test_learned_gradients.py::test_dorefa_differentiates_the_magnitude_that_it_keeps",
    ),
    Mutation(
        "dorefa-loses-the-magnitude", "qfunc.recipes:dorefa",
        "function = DoReFa(largest=None)",
        "function = DoReFa()",
        "tests/training/test_training.py::test_recipes_begin_near_the_trained_network",
    ),
    Mutation(
        "own-gradient-summed-twice", "qfunc.functions.own_gradient:_UserGradient._shared",
        "if gradient.shape == parameter.shape:",
        "if False:",
        "tests/functions/test_with_gradient.py::test_gradients_may_come_in_the_parameters_shape_or_not_at_all",
    ),
)  # fmt: skip
