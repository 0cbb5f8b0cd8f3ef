"""Breakages of what check_target asks: laws that ask nothing, or too little."""

from mutants.mutation import Mutation

CAUGHT = "tests/conformance/test_wrong_targets.py::test_a_wrong_target_is_caught_by_the_law_named_for_it"

TARGET_LAWS = (
    Mutation(
        "laws-are-not-asked", "qfunc.testing.target_check:MODEL_LAWS",
        "(*TRIAL_LAWS, *ARITHMETIC_LAWS, *ARTIFACT_LAWS, transforms_are_pure)",
        "(*TRIAL_LAWS, *ARITHMETIC_LAWS, *ARTIFACT_LAWS)",
        CAUGHT, case="an-estimator-that-clips-its-input",
    ),
    Mutation(
        "only-pickles-count", "qfunc.testing.laws.target:round_trips",
        'assert pickle.loads(pickle.dumps(target)) == target, "pickle gives another target"',
        "pickle.dumps(target)",
        CAUGHT, case="a-pickle-that-loses-a-field",
    ),
    Mutation(
        "kinds-of-selectors-are-free", "qfunc.testing.laws.target:kinds_exist",
        "if isinstance(v, Op) for k in v.kinds if isinstance(k, str)]",
        "if False for k in v.kinds if isinstance(k, str)]",
        CAUGHT, case="another-name-for-convolutions",
    ),
    Mutation(
        "unknown-may-name-unknown", "qfunc.testing.laws.target:nearest_can_be_emulated",
        'assert not unknown, f"the arithmetic',
        'assert True, f"the arithmetic',
        CAUGHT, case="a-nearest-target-that-cannot-be-emulated-either",
    ),
    Mutation(
        "nothing-commutes-by-law", "qfunc.testing.laws.target:commuting_ops_commute",
        "differ = int((after != before).sum())",
        "differ = int((after != after).sum())",
        CAUGHT, case="averages-that-commute",
    ),
    Mutation(
        "refused-ops-are-the-rules", "qfunc.testing.laws.placement:legality_accepts_the_rules",
        "assert not breach.slot, f",
        "assert True, f",
        CAUGHT, case="one-scale-a-tensor-required-one-a-channel-given",
    ),
    Mutation(
        "any-scale-is-allowed", "qfunc.testing.laws.placement:scales_are_allowed",
        "feasible(module.qparams(), module.site.scheme,",
        'str.format("{}",',
        CAUGHT, case="a-scale-of-0",
    ),
    Mutation(
        "dictated-scales-may-move", "qfunc.testing.laws.placement:dictated_qparams_are_exact",
        "exact = found.scale == torch.tensor(value.scale) and",
        "exact = found.zero_point == value.zero_point and",
        CAUGHT, case="dictated-qparams-that-a-tie-overwrites",
    ),
    Mutation(
        "bias-scales-are-free", "qfunc.testing.laws.placement:biases_have_the_product_of_scales",
        "same = bool((scale.flatten() == wanted).all()) and not",
        "same = not",
        CAUGHT, case="a-bias-at-the-weight-s-scale",
    ),
    Mutation(
        "any-axis-is-summed", "qfunc.testing.laws.placement:weights_scale_by_output_channel",
        "assert ours == wanted, f",
        "assert True, f",
        CAUGHT, case="scales-along-the-input-channels",
    ),
    Mutation(
        "ties-of-one", "qfunc.testing.laws.placement:ties_share_qparams",
        "for other in tied[1:]:",
        "for other in tied[:1]:",
        CAUGHT, case="tied-tensors-one-signed-and-one-not",
    ),
    Mutation(
        "probes-stay-inside", "qfunc.testing.laws.placement:_probe",
        "halves = torch.arange(2 * fmt.qmin - 5, 2 * fmt.qmax + 6,",
        "halves = torch.arange(2 * fmt.qmin, 2 * fmt.qmax + 1,",
        CAUGHT, case="a-simulation-that-does-not-clip",
    ),
    Mutation(
        "two-codes-are-one", "qfunc.testing.laws.arithmetic:_TeacherForced.run_node",
        "(simulated - emulated).abs() > 1 +",
        "(simulated - emulated).abs() > 99 +",
        CAUGHT, case="a-sum-whose-inputs-are-rounded-first",
    ),
    Mutation(
        "the-model-may-change", "qfunc.testing.laws.artifact:lowering_is_pure_and_deterministic",
        "program.model.SerializeToString(deterministic=True) == before, f",
        "True, f",
        CAUGHT, case="a-lowering-that-edits-its-input",
    ),
    Mutation(
        "float-weights-are-free", "qfunc.testing.laws.artifact:artifact_holds_the_constants",
        "elif str(source.target) in stored and not",
        "elif False and not",
        CAUGHT, case="weights-that-are-not-the-quantized-ones",
    ),
    Mutation(
        "float-models-are-coarse", "qfunc.testing.laws.artifact:artifact_computes_the_simulation",
        "bound = (0.01 if quantizes else 1e-8)",
        "bound = 0.01",
        CAUGHT, case="the-same-under-other-names",
    ),
    Mutation(
        "files-may-name-nothing", "qfunc.testing.laws.artifact:side_files_name_tensors",
        "assert some or not any_quantized, f",
        "assert True, f",
        CAUGHT, case="names-of-the-vendor-s-own",
    ),
    Mutation(
        "one-strange-name-is-fine", "qfunc.testing.laws.artifact:side_files_name_tensors",
        "assert not strange or len(strange) == len(table),",
        "assert True,",
        CAUGHT, case="the-name-of-a-tensor-that-is-gone",
    ),
)  # fmt: skip
