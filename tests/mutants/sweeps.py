"""Breakages of sweeps over targets."""

from mutants.mutation import Mutation

SWEEPS = (
    Mutation(
        "a-score-against-the-corrected-network",
        "qfunc.sweeps.measure:measured",
        "QuantizedModel(task.calibrated).float_network",
        "QuantizedModel(calibrated).float_network",
        "tests/sweeps/test_sweep.py::test_then_is_applied_to_each_calibrated_model",
    ),
    Mutation(
        "rows-without-their-target",
        "qfunc.sweeps.stored:Stored._digest",
        'f"{self.digest}\\n{text}"',
        'f"{self.digest}"',
        "tests/sweeps/test_sweep.py::test_rows_of_other_values_are_measured_again",
    ),
    Mutation(
        "sizes-with-the-report",
        "qfunc.sweeps.measure:measured",
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
