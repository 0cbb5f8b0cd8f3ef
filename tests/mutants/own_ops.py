"""Breakages of what the user's own ops and values need."""

from mutants.mutation import Mutation

TEXT, CALL = (f"qfunc/lowering/onnx_{name}.py" for name in ("own", "call"))
OWN = "tests/lowering/test_own_ops.py::test_runtime_simulation_and_emulation_compute_the_op"

OWN_OPS = (
    Mutation(
        "own-text-unread", TEXT,
        "if own is not None and own.onnx is not None:",
        "if own is not None and own.onnx is None:",
        f"{OWN}[two tensors, a function]",
    ),
    Mutation("own-arguments-unread", CALL, "if parameter in given:", "if parameter == 'input':", f"{OWN}[arguments by name]"),
    Mutation(
        "own-kind-by-its-name", CALL,
        "if op.kind == (self.own.behaves_like or self.own.name))",
        "if op.kind == self.own.name)",
        f"{OWN}[the kind's default]",
    ),
    Mutation(
        "functions-have-addresses", "specs/_repr.py",
        "str(value.__qualname__) if isinstance(value, FunctionType) else repr(value)",
        "repr(value)",
        "tests/lowering/test_own_ops.py::test_a_predicate_prints_by_its_name",
    ),
)  # fmt: skip
