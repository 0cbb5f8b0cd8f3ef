"""Breakages of the commands."""

from mutants.mutation import Mutation

COMMAND_LINE = (
    Mutation(
        "a-difference-is-exit-code-0",
        "qfunc.command_line.quantize:write",
        "code = int(report.mismatches > 0)",
        "code = 0",
        "tests/command_line/test_quantize_command.py::test_a_difference_is_exit_code_1",
    ),
    Mutation(
        "arrays-in-the-order-of-the-file",
        "qfunc.command_line.calibration_data:read_batches",
        "[arrays[i.name] for i in inputs] if named else list(arrays.values())",
        "list(arrays.values())",
        "tests/command_line/test_quantize_command.py::test_arrays_by_name_or_in_order",
    ),
    Mutation(
        "a-fixed-batch-takes-the-rest",
        "qfunc.command_line.calibration_data:read_batches",
        "lengths[0] // fixed * fixed",
        "lengths[0]",
        "tests/command_line/test_quantize_command.py::test_a_fixed_batch_omits_the_rest",
    ),
)
