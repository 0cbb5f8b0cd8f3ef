"""Breakages of what the user's own ops and values need."""

from mutants.mutation import Mutation

OWN = "tests/lowering/onnx/test_custom_ops.py::test_runtime_simulation_and_emulation_compute_the_op"

OWN_OPS = (
    Mutation(
        "own-text-unread", "qfunc.lowering.onnx.custom_ops:write_op",
        "if definition is not None and definition.onnx is not None:",
        "if definition is not None and definition.onnx is None:",
        OWN, case="two tensors, a function",
    ),
    Mutation(
        "own-arguments-unread", "qfunc.lowering.onnx.context:OpContext.__getitem__",
        "if parameter in given:",
        "if parameter == 'input':",
        OWN, case="arguments by name",
    ),
    Mutation(
        "own-kind-by-its-name", "qfunc.lowering.onnx.context:OpContext._op",
        "if op.kind == (self.own.behaves_like or self.own.kind))",
        "if op.kind == self.own.kind)",
        OWN, case="the kind's default",
    ),
    Mutation(
        "functions-have-addresses", "qfunc.specs._values:one_line",
        "str(value.__qualname__) if isinstance(value, FunctionType) else repr(value)",
        "repr(value)",
        "tests/lowering/onnx/test_custom_ops.py::test_a_predicate_prints_by_its_name",
    ),
    Mutation(
        "functions-stay-calls", "qfunc.targets.openvino.lowering:OpenVinoLowering.lower",
        "whole = without_functions(program.model)",
        "whole = program.model",
        "tests/emulation/test_own_ops.py::test_functions_of_the_users_run_in_runtimes_that_read_none", case="Scaled-openvino",
    ),
)  # fmt: skip
