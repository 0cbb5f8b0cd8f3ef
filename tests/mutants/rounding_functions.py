"""Breakages of the functions that decide about rounding, of their noise, and of the laws of functions."""

from mutants.mutation import Mutation

VECTORS = "tests/numerics/test_noise.py::test_the_generator_gives_its_published_vectors"
BY_HAND = "tests/numerics/test_noise.py::test_numbers_are_those_of_integers_by_hand"
NEAREST = "tests/functions/test_adaround.py::test_before_training_hard_is_nearest_with_ties_up"
SOFT = "tests/functions/test_adaround.py::test_the_soft_value_is_that_of_the_equations"
V_GRADIENT = "tests/functions/test_adaround.py::test_gradients_are_those_of_the_plain_formula"
BROKEN = "tests/functions/test_function_laws.py::test_a_broken_function_is_caught_by_its_law"

ROUNDING_FUNCTIONS = (
    # noise
    Mutation("philox-key-never-moves", "qfunc.numerics.noise:philox", "(k0 + _KEY_STEPS[0]) & _WORD", "k0 & _WORD", VECTORS),
    Mutation(
        "philox-words-swapped", "qfunc.numerics.noise:philox",
        "= high1, p1, high0, p0",
        "= high0, p0, high1, p1",
        VECTORS,
    ),
    Mutation("noise-forgets-half-the-step", "qfunc.numerics.noise:uniform", "(step >> 32) & _WORD)", "step & _WORD)", BY_HAND),
    Mutation(
        "noise-reaches-one", "qfunc.numerics.noise:uniform",
        "(word >> 8).bitwise_and_(0xFFFFFF).float()",
        "(word & 0xFFFFFFFF).float() / 256",
        "tests/numerics/test_noise.py::test_numbers_lie_on_a_grid_below_one",
    ),
    # AdaRound
    Mutation(
        "adaround-tie-down", "qfunc.functions.adaround:AdaRound.export",
        "_codes(x, params.v >= 0,",
        "_codes(x, params.v > 0,",
        NEAREST,
    ),
    Mutation(
        "adaround-ties-by-the-papers-logarithm", "qfunc.functions.adaround:AdaRound.init",
        "(2 * torch.atanh((rest - 0.5) / (self.zeta - 0.5))).float()",
        "(-torch.log((self.zeta - self.gamma) / (rest.double() - self.gamma) - 1)).float()",
        NEAREST,
    ),
    Mutation(
        "adaround-rounds-instead-of-floor", "qfunc.functions.adaround:_codes",
        "codes = torch.floor(ratio",
        "codes = torch.round(ratio",
        SOFT,
    ),
    Mutation(
        "adaround-stretch-forgets-gamma", "qfunc.functions.adaround:AdaRound.soft",
        "* (self.zeta - self.gamma) + ",
        "* self.zeta + ",
        SOFT,
    ),
    Mutation(
        "adaround-weights-get-no-gradient", "qfunc.functions.adaround:AdaRound.relax",
        "return value + with_gradient_of(surrogate, torch.zeros_like(surrogate))",
        "return value",
        V_GRADIENT,
    ),
    Mutation(
        "adaround-hardens-too-little", "qfunc.functions.adaround:_DECIDED",
        "_DECIDED = 100.0",
        "_DECIDED = 2.0",
        "tests/functions/test_adaround.py::test_harden_makes_soft_and_hard_one",
    ),
    Mutation(
        "adaround-regulariser-of-h", "qfunc.functions.adaround:AdaRound.regulariser",
        "(2 * self.soft(params) - 1).abs()",
        "self.soft(params).abs()",
        "tests/functions/test_adaround.py::test_the_regulariser_is_equation_24",
    ),
    Mutation(
        "adaround-takes-a-stand-in", "qfunc.functions.adaround:AdaRound.init",
        "if x.ndim == 0 or x.numel() == 0:",
        "if x.ndim == -1:",
        "tests/functions/test_adaround.py::test_init_refuses_what_has_no_rounding_to_learn",
    ),
    # stochastic rounding, QDrop, NNIE
    Mutation(
        "stochastic-forgets-the-zero-point", "qfunc.functions.stochastic:Stochastic.relax",
        "codes + spread(qparams.zero_point, wide, scheme)",
        "codes",
        "tests/functions/test_stochastic.py::test_the_mean_over_noise_is_x",
    ),
    Mutation(
        "stochastic-without-its-gradient", "qfunc.functions.stochastic:Stochastic.relax",
        "return with_gradient_of(self.inner.apply(params, x, scheme), value)",
        "return with_gradient_of(x, value)",
        "tests/functions/test_stochastic.py::test_deployed_values_and_all_gradients_are_those_of_the_inner_function",
    ),
    Mutation(
        "qdrop-drops-with-p", "qfunc.functions.qdrop:QDrop.relax",
        "torch.where(noise < self.p, value, x)",
        "torch.where(noise < self.p, x, value)",
        "tests/functions/test_qdrop.py::test_each_element_is_quantized_or_float",
    ),
    Mutation(
        "qdrop-passes-its-noise-on", "qfunc.functions.qdrop:QDrop.relax",
        "inner_noise = (noise / self.p).clamp(max=1 - 2.0**-24)",
        "inner_noise = noise",
        "tests/functions/test_qdrop.py::test_a_surrogate_inside_gets_noise_that_is_still_uniform",
    ),
    Mutation(
        "nnie-gradient-of-nothing", "qfunc.functions.nnie_log:NnieLog.apply",
        "return with_gradient_of(x, value)",
        "return with_gradient_of(x.detach(), value)",
        "tests/functions/test_nnie_log.py::test_gradient_is_one_everywhere",
    ),
    Mutation(
        "inner-function-of-another-tensor", "qfunc.functions._inner:require_of_x",
        "if not torch.equal(codes.nan_to_num(), codes_of_x.nan_to_num()):",
        "if codes.shape != codes_of_x.shape:",
        "tests/functions/test_adaround.py::test_init_refuses_what_has_no_rounding_to_learn",
    ),
    # the laws
    Mutation(
        "law-sees-one-sign-of-saturation", "qfunc.testing.laws.function_gradients:_saturation",
        "for sign in (1, -1):",
        "for sign in ():",
        BROKEN,
    ),
    Mutation(
        "law-trusts-learned-names", "qfunc.testing.laws.function_gradients:_learned",
        "untrained = [n for n in names if n not in seen]",
        "untrained = []",
        BROKEN,
    ),
    Mutation(
        "law-without-channels", "qfunc.testing.laws.function_values:_channels",
        "if not isinstance(case.scheme.scale.shared, PerChannel):",
        "if True:",
        BROKEN,
    ),
)  # fmt: skip
