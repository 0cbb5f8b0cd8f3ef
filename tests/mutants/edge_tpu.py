"""Wrong facts of the Edge TPU and of a host, caught by the sentences of Coral's page and by sums of Python's integers."""

from mutants.mutation import Mutation

CHAINS = "tests/targets/test_edge_tpu.py::test_a_chain_is_divided_where_the_documents_say"

EDGE_TPU = (
    Mutation(
        "the-chip-has-leaky-relu", "qfunc.targets.edge_tpu:RUN",
        '"relu", "clip",',
        '"relu", "leaky_relu", "clip",',
        CHAINS,
    ),
    Mutation(
        "softmaxes-of-any-length", "qfunc.targets.edge_tpu:edge_tpu",
        "elements=Span(1, 16_000)",
        "elements=Span(1, 16_384)",
        "tests/targets/test_edge_tpu.py::test_a_softmax_of_16_000_elements_is_the_longest",
    ),
    Mutation(
        "linear-layers-of-rows", "qfunc.targets.edge_tpu:edge_tpu",
        'RequireSizes(Op(("linear", "matmul")), "output",',
        'RequireSizes(Op("matmul"), "output",',
        CHAINS,
    ),
    Mutation("tensors-of-five-axes", "qfunc.targets.edge_tpu:edge_tpu", "rank=Span(1, 4)", "rank=Span(1, 5)", CHAINS),
    Mutation(
        "the-chip-goes-on", "qfunc.placement.legality.host:on_host",
        """reason = f"it comes after {first!r}" if first else _refusal""",
        """reason = _refusal""",
        CHAINS,
    ),
    Mutation(
        "floats-run-on-the-chip", "qfunc.placement.legality.host:on_host",
        "if not reason and in_float(group):",
        "if False:",
        "tests/targets/test_edge_tpu.py::test_an_op_in_float_runs_on_the_host",
    ),
    Mutation(
        "the-host-computes-as-the-chip", "qfunc.placement.partition:Partition._unit",
        "self.target.host.kernels if hosted and self.target.host is not None else self.target.kernels",
        "self.target.kernels",
        "tests/targets/test_edge_tpu.py::test_each_side_has_its_own_arithmetic",
    ),
)  # fmt: skip
