"""Breakages of sweeps over targets."""

from mutants.mutation import Mutation

SWEEPS = (
    Mutation(
        "a-score-against-the-corrected-network",
        "qfunc.sweeps.measure:measure_row",
        "QuantizedModel(task.calibrated).float_network",
        "QuantizedModel(calibrated).float_network",
        "tests/sweeps/test_sweep.py::test_then_is_applied_to_each_calibrated_model",
    ),
    Mutation(
        "rows-without-their-target",
        "qfunc.sweeps.stored:Stored._digest",
        'f"{self.digest}\\n{found}"',
        'f"{self.digest}"',
        "tests/sweeps/test_sweep.py::test_rows_of_other_values_are_measured_again",
    ),
    Mutation(
        "rows-of-other-calibration-batches",
        "qfunc.sweeps.sweep:_Study._stored",
        'batches["calibration"] = self.calibration',
        "pass",
        "tests/sweeps/test_sweep.py::test_rows_of_other_values_are_measured_again",
    ),
    Mutation(
        "rows-of-the-first-batch",
        "qfunc.sweeps.digest:digest_of_batches",
        "for batch in batches:",
        "for batch in list(batches)[:1]:",
        "tests/sweeps/test_sweep.py::test_rows_of_other_values_are_measured_again",
    ),
    Mutation(
        "functions-without-their-code",
        "qfunc.sweeps.digest:_Digest._function",
        "(function.__code__, function.__defaults__, function.__kwdefaults__)",
        "(function.__defaults__, function.__kwdefaults__)",
        "tests/sweeps/test_digest.py::test_a_change_of_a_function_changes_its_digest",
    ),
    Mutation(
        "functions-without-their-globals",
        "qfunc.sweeps.digest:_Digest._function",
        "sorted(_globals(function).items())",
        "()",
        "tests/sweeps/test_digest.py::test_a_change_of_a_function_changes_its_digest",
    ),
    Mutation(
        "sets-in-the-order-of-their-hashes",
        "qfunc.sweeps.digest:_Digest._parts",
        "sorted(map(self, value))",
        "map(self, value)",
        "tests/sweeps/test_digest.py::test_other_processes_have_the_same_digests",
    ),
    Mutation(
        "a-failure-that-stays",
        "qfunc.sweeps.stored:Stored.row",
        'if row.why not in ("", NO_LOWERING):',
        "if False:",
        "tests/sweeps/test_failing_rows.py::test_a_stored_failure_is_tried_again",
    ),
    Mutation(
        "any-result-of-then",
        "qfunc.sweeps.measure:_corrected",
        'require_stage(found, "calibrated", "sweep, then")',
        "pass",
        "tests/sweeps/test_failing_rows.py::test_the_other_rows_are_measured",
    ),
    Mutation(
        "misspelt-arguments-as-labels",
        "qfunc.diagnosis.labelled_batches:without_labels",
        "cutoff=CLOSE",
        "cutoff=1.0",
        "tests/sweeps/test_labelled_batches.py::test_missing_and_misspelt_arguments_are_refused",
    ),
    Mutation(
        "sizes-with-the-report",
        "qfunc.sweeps.measure:measure_row",
        "if name != REPORT",
        "if name",
        "tests/sweeps/test_sweep.py::test_the_rows_are_those_of_the_single_steps",
    ),
    Mutation(
        "a-front-of-sizes",
        "qfunc.sweeps.report:SweepRow.beats",
        "and any(a > b for a, b in pairs)",
        "and all(a > b for a, b in pairs)",
        "tests/sweeps/test_sweep.py::test_the_front_is_the_pareto_front",
    ),
)
