"""Breakages of MLAS's float ops, of where they are taken to be exact, and of products that leave the integers."""

from mutants.mutation import Mutation

NETWORKS = "tests/lowering/onnxruntime/test_transformers.py::test_not_one_element_differs"
FMA = "tests/numerics/test_fixed_point.py"

MLAS = (
    Mutation(
        "mlas-root-of-float32", "qfunc.targets.onnxruntime.mlas:_sqrt",
        "return x.double().sqrt().float()",
        "return x.sqrt()",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_layer_norm",
    ),
    Mutation(
        "mlas-mean-in-float32", "qfunc.targets.onnxruntime.mlas:layer_norm",
        "mean = (rows.double().sum(-1, keepdim=True) / size).float()",
        "mean = rows.mean(-1, keepdim=True)",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_layer_norm",
    ),
    Mutation(
        "mlas-fours-are-fused", "qfunc.targets.onnxruntime.mlas:_sum_of_squares",
        "total = total + rest[..., at] * rest[..., at]",
        "total = fma(rest[..., at], rest[..., at], total)",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_layer_norm",
    ),
    Mutation(
        "mlas-short-rows-by-lanes", "qfunc.targets.onnxruntime.mlas:layer_norm",
        "if size < _LANES:",
        "if size < 0:",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_layer_norm",
    ),
    Mutation(
        "mlas-bias-behind-the-product", "qfunc.targets.onnxruntime.mlas:layer_norm",
        "else fma(quotient, w.expand_as(rows), b.expand_as(rows))",
        "else quotient * w + b",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_layer_norm",
    ),
    Mutation(
        "mlas-sums-in-eight-lanes", "qfunc.targets.onnxruntime.mlas:_LANES",
        "_LANES, _WIDE, _BLOCK = 8, 16,",
        "_LANES, _WIDE, _BLOCK = 8, 8,",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_softmax",
    ),
    Mutation(
        "mlas-softmax-divides", "qfunc.targets.onnxruntime.mlas:_shares",
        "return e * (1 / (fours[..., :1] + fours[..., 1:]))",
        "return e / (fours[..., :1] + fours[..., 1:])",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_softmax",
    ),
    Mutation(
        "mlas-exponentials-end-at-88", "qfunc.targets.onnxruntime.mlas:_exponentials",
        "_EXP, -103.9720840454)",
        "_EXP, -88.3762626647949)",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_softmax",
    ),
    Mutation(
        "mlas-erf-seam", "qfunc.targets.onnxruntime.mlas:erf",
        "size > 0.921875",
        "size > 0.9375",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_curves",
    ),
    Mutation(
        "mlas-gelu-of-the-square-first", "qfunc.targets.onnxruntime.mlas:_tanh_curve",
        "return tanh(x * (c * x * x + b))",
        "return tanh(x * (c * (x * x) + b))",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_curves",
    ),
    Mutation(
        "units-exact-behind-unknown-floats", "qfunc.placement.partition:Partition.exact_nodes",
        "if known and all(s in exact",
        "if known or all(s in exact",
        "tests/placement/test_partition_promises.py",
    ),
    Mutation(
        "units-in-float-count-as-integer", "qfunc.placement.partition:Partition._unit",
        "codes = kernel is None or (not kernel.in_float and any(",
        "codes = kernel is None or (any(",
        "tests/placement/test_partition_promises.py",
    ),
    Mutation(
        "units-real-outputs-want-codes", "qfunc.placement.kernels:_holds",
        "return isinstance(condition, ClampImplied)",
        "return False",
        "tests/placement/test_partition_promises.py",
    ),
    Mutation(
        "verify-wants-codes-of-a-real-output", "qfunc.transforms.verification.units:_state",
        "if unit.integer and not coded:",
        "if unit.integer and coded:",
        NETWORKS,
    ),
    Mutation(
        "verify-moves-have-one-place", "qfunc.transforms.verification.units:wrong_predictions",
        'and not (state == "integer" and _moves_before_quantizer(partition, unit)):',
        ":",
        NETWORKS,
    ),
    Mutation(
        "fma-never-between", "qfunc.numerics.kernels.integer:_double_rounding_is_possible",
        "return bool(((bits == 0x10000000) |",
        "return bool(((bits == 0x1) |",
        FMA,
    ),
)  # fmt: skip
