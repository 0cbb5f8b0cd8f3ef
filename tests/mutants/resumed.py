"""Breakages of calibrations that go on."""

from mutants.mutation import Mutation

RESUMED = (
    Mutation(
        "a-stored-batch-runs-again",
        "qfunc.execution.stored_statistics:StoredStatistics.has",
        "stored = number <= self.count",
        "stored = number < self.count",
        "tests/execution/test_resumed_calibration.py::test_it_goes_on_after_the_last_stored_batch",
    ),
    Mutation(
        "statistics-of-other-weights",
        "qfunc.execution.stored_statistics:_key",
        " + value.view(torch.uint8).numpy().tobytes()",
        "",
        "tests/execution/test_resumed_calibration.py::test_statistics_of_another_model_are_refused",
    ),
    Mutation(
        "any-class-of-named-tuples",
        "qfunc.files.values:decode",
        "if not rest and name in classes:",
        "if not rest:",
        "tests/execution/test_resumed_calibration.py::test_damaged_files",
    ),
)
