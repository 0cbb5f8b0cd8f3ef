"""Breakages of MLAS's float ops, of where they are taken to be exact, and of products that leave the integers."""

from mutants.mutation import Mutation

REAL, TARGET = "qfunc/numerics/mlas_real.py", "targets/onnxruntime.py"
UNITS, PRODUCTS, VERIFY = "qfunc/graph/units.py", "qfunc/transforms/products.py", "qfunc/transforms/verification.py"
KERNELS = "tests/runtime/test_float_kernels.py"
NETWORKS = "tests/runtime/test_transformers.py::test_not_one_element_differs"
FMA = "tests/numerics/test_fixed_point.py"

MLAS = (
    Mutation(
        "mlas-root-of-float32", REAL, "return x.double().sqrt().float()", "return x.sqrt()", f"{KERNELS}::test_layer_norm"
    ),
    Mutation(
        "mlas-mean-in-float32",
        REAL,
        "mean = (rows.double().sum(-1, keepdim=True) / size).float()",
        "mean = rows.mean(-1, keepdim=True)",
        f"{KERNELS}::test_layer_norm",
    ),
    Mutation(
        "mlas-fours-are-fused",
        REAL,
        "total = total + rest[..., at] * rest[..., at]",
        "total = fma(rest[..., at], rest[..., at], total)",
        f"{KERNELS}::test_layer_norm",
    ),
    Mutation("mlas-short-rows-by-lanes", REAL, "if size < _LANES:", "if size < 0:", f"{KERNELS}::test_layer_norm"),
    Mutation(
        "mlas-bias-behind-the-product",
        REAL,
        "else fma(scaled, w.expand_as(rows), b.expand_as(rows))",
        "else scaled * w + b",
        f"{KERNELS}::test_layer_norm",
    ),
    Mutation(
        "mlas-sums-in-eight-lanes",
        REAL,
        "_LANES, _WIDE, _BLOCK = 8, 16,",
        "_LANES, _WIDE, _BLOCK = 8, 8,",
        f"{KERNELS}::test_softmax",
    ),
    Mutation(
        "mlas-softmax-divides",
        REAL,
        "return e * (1 / (fours[..., :1] + fours[..., 1:]))",
        "return e / (fours[..., :1] + fours[..., 1:])",
        f"{KERNELS}::test_softmax",
    ),
    Mutation(
        "mlas-exponentials-end-at-88", REAL, "_EXP, -103.9720840454)", "_EXP, -88.3762626647949)", f"{KERNELS}::test_softmax"
    ),
    Mutation("mlas-erf-seam", REAL, "size > 0.921875", "size > 0.9375", f"{KERNELS}::test_curves"),
    Mutation(
        "mlas-gelu-of-the-square-first",
        REAL,
        "return tanh(x * (c * x * x + b))",
        "return tanh(x * (c * (x * x) + b))",
        f"{KERNELS}::test_curves",
    ),
    Mutation(
        "units-exact-behind-unknown-floats",
        UNITS,
        "if known and all(s in found",
        "if known or all(s in found",
        "tests/graph/test_exact_units.py",
    ),
    Mutation(
        "units-in-float-count-as-integer",
        UNITS,
        "codes = kernel is None or (not _in_float(kernel) and any(",
        "codes = kernel is None or (any(",
        "tests/graph/test_exact_units.py",
    ),
    Mutation(
        "units-real-outputs-want-codes",
        UNITS,
        'return isinstance(condition, ClampImplied) and missing == ["output"]',
        "return False",
        "tests/graph/test_exact_units.py",
    ),
    Mutation(
        "verify-wants-codes-of-a-real-output", VERIFY, "if unit.integer and not coded:", "if unit.integer and coded:", NETWORKS
    ),
    Mutation("verify-moves-have-one-place", VERIFY, 'and not (actual == "integer" and self._moves(unit)):', ":", NETWORKS),
    Mutation(
        "fma-never-between",
        "qfunc/numerics/integer.py",
        "return bool(((bits == 0x10000000) |",
        "return bool(((bits == 0x1) |",
        FMA,
    ),
)
