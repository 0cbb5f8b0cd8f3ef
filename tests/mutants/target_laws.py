"""Breakages of what check_target asks: laws that ask nothing, or too little."""

from mutants.mutation import Mutation

VALUES, TRIALS = "qfunc/testing/target_laws.py", "qfunc/testing/trial_laws.py"
ARTIFACTS, ARITHMETIC = "qfunc/testing/artifact_laws.py", "qfunc/testing/arithmetic_laws.py"
TESTS = "tests/conformance/test_wrong_targets.py"
CAUGHT = f"{TESTS}::test_a_wrong_target_is_caught_by_the_law_named_for_it"

TARGET_LAWS = (
    Mutation(
        "laws-are-not-asked", "qfunc/testing/check.py",
        "(*TRIAL_LAWS, *ARITHMETIC_LAWS, *ARTIFACT_LAWS, transforms_are_pure)",
        "(*TRIAL_LAWS, *ARITHMETIC_LAWS, *ARTIFACT_LAWS)",
        f"{CAUGHT}[an-estimator-that-clips-its-input]",
    ),
    Mutation(
        "only-pickles-count", VALUES,
        'assert pickle.loads(pickle.dumps(target)) == target, "pickle gives another target"',
        "pickle.dumps(target)",
        f"{CAUGHT}[a-pickle-that-loses-a-field]",
    ),
    Mutation("kinds-of-selectors-are-free", VALUES, "if isinstance(v, Op) for k in v.kinds]", "if False for k in v.kinds]",
             f"{CAUGHT}[another-name-for-convolutions]"),
    Mutation("unknown-may-name-unknown", VALUES, 'assert not unknown, f"the arithmetic', 'assert True, f"the arithmetic',
             f"{CAUGHT}[a-nearest-target-that-cannot-be-emulated-either]"),
    Mutation(
        "nothing-commutes-by-law", "qfunc/testing/commuting_law.py",
        "before = fake_quantize(op(x), qparams, scheme), op(fake_quantize(x, qparams, scheme))",
        "before = op(x), op(x)",
        f"{CAUGHT}[averages-that-commute]",
    ),
    Mutation("refused-ops-are-the-rules", TRIALS, "assert not breach.slot, f", "assert True, f",
             f"{CAUGHT}[one-scale-a-tensor-required-one-a-channel-given]"),
    Mutation("any-scale-is-allowed", TRIALS, "feasible(module.qparams(), module.site.scheme,", 'str.format("{}",',
             f"{CAUGHT}[a-scale-of-0]"),
    Mutation("dictated-scales-may-move", TRIALS, "exact = found.scale == torch.tensor(value.scale) and",
             "exact = found.zero_point == value.zero_point and",
             f"{CAUGHT}[dictated-qparams-that-a-tie-overwrites]"),
    Mutation("bias-scales-are-free", TRIALS, "same = bool((scale.flatten() == wanted).all()) and not",
             "same = not", f"{CAUGHT}[a-bias-at-the-weight-s-scale]"),
    Mutation("any-axis-is-summed", TRIALS, "assert ours == wanted, f", "assert True, f",
             f"{CAUGHT}[scales-along-the-input-channels]"),
    Mutation("ties-of-one", TRIALS, "for other in tied[1:]:", "for other in tied[:1]:",
             f"{CAUGHT}[tied-tensors-one-signed-and-one-not]"),
    Mutation("probes-stay-inside", TRIALS, "halves = torch.arange(2 * fmt.qmin - 5, 2 * fmt.qmax + 6,",
             "halves = torch.arange(2 * fmt.qmin, 2 * fmt.qmax + 1,",
             f"{CAUGHT}[a-simulation-that-does-not-clip]"),
    Mutation("two-codes-are-one", ARITHMETIC, "(simulated - emulated).abs() > 1 +", "(simulated - emulated).abs() > 99 +",
             f"{CAUGHT}[a-sum-whose-inputs-are-rounded-first]"),
    Mutation("the-model-may-change", ARTIFACTS, "model.SerializeToString(deterministic=True) == before, f", "True, f",
             f"{CAUGHT}[a-lowering-that-edits-its-input]"),
    Mutation("float-weights-are-free", ARTIFACTS, "elif str(source.target) in held and not", "elif False and not",
             f"{CAUGHT}[weights-that-are-not-the-quantized-ones]"),
    Mutation("float-models-are-coarse", ARTIFACTS, "bound = (0.01 if quantizes else 1e-8)", "bound = 0.01",
             f"{CAUGHT}[the-same-under-other-names]"),
    Mutation("files-may-name-nothing", ARTIFACTS, "assert some or not any_quantized, f", "assert True, f",
             f"{CAUGHT}[names-of-the-vendor-s-own]"),
    Mutation("one-strange-name-is-fine", ARTIFACTS, "assert not strange or len(strange) == len(table),", "assert True,",
             f"{CAUGHT}[the-name-of-a-tensor-that-is-gone]"),
)  # fmt: skip
