"""Breakages of the targets' data and of what placement makes of them."""

from mutants.mutation import Mutation

MQBENCH, NLP = "tests/targets/test_mqbench_targets.py", "tests/targets/test_nlp_targets.py"


def parity(backend: str) -> str:
    """The comparison of one back-end with MQBench."""
    return f"tests/graph/test_placement_parity.py::test_every_difference_from_mqbench_is_explained[{backend}]"


TARGETS = (
    Mutation("snpe-without-outputs", "targets/snpe.py", "bias=Derived(), output=TF", "bias=Derived()", parity("SNPE-snpe")),
    Mutation(
        "snpe-narrow-ranges", "targets/snpe.py",
        "Scale(minimum_range=0.01)", "Scale()",
        f"{MQBENCH}::test_snpe_widens_narrow_ranges_to_a_hundredth",
    ),
    Mutation(
        "ppl-of-8-bits", "targets/ppl_w8a16.py",
        "Int(16, signed=False)", "Int(8, signed=False)",
        parity("PPLW8A16-ppl_w8a16"),
    ),
    Mutation(
        "ppl-cuda-per-tensor", "targets/ppl_cuda.py",
        'Scale(PerChannel(), divisor="half_range")', 'Scale(divisor="half_range")',
        parity("PPLCUDA-ppl_cuda"),
    ),
    Mutation(
        "ppl-cuda-of-127", "targets/ppl_cuda.py",
        'Scale(PerChannel(), divisor="half_range")', "Scale(PerChannel())",
        f"{MQBENCH}::test_ppl_cuda_divides_by_half_the_range",
    ),
    Mutation("stpu-uses-the-lowest-code", "targets/stpu.py", "Int(8, low=-127)", "Int(8)", parity("STPU-stpu")),
    Mutation(
        "stpu-concat-of-its-own", "targets/stpu.py",
        'Tie(Op("concat"), ("input", "output"), "output"), ', "",
        f"{MQBENCH}::test_stpu_gives_the_inputs_of_a_concat_its_outputs_range",
    ),
    Mutation(
        "stpu-sigmoid-as-observed", "targets/stpu.py",
        "output=Fixed(BYTE, 1 / 127)", "output=BYTE",
        f"{MQBENCH}::test_stpu_writes_sigmoids_at_one_whatever_was_seen",
    ),
    Mutation(
        "stpu-quantizes-what-it-folds", "targets/stpu.py",
        ", edges=~Constant()", "",
        f"{MQBENCH}::test_stpu_folds_the_product_behind_a_convolution",
    ),
    Mutation(
        "nnie-with-group-convolutions", "targets/nnie.py",
        'Rule(CONVS & ~Attr("groups", 1), input=Keep(), weight=Keep()),', "",
        parity("NNIE-nnie"),
    ),
    Mutation(
        "nnie-each-input-its-own", "targets/nnie.py",
        'ties=(Tie(Op(("add", "mul")), "input", "union"),)', "ties=()",
        f"{MQBENCH}::test_nnie_leaves_group_convolutions_and_gives_the_inputs_of_an_addition_one_range",
    ),
    Mutation(
        "academic-last-layer-like-the-others", "targets/academic.py",
        "LAYERS & (First() | Last())", "LAYERS & First()",
        parity("Academic-academic_w4a4"),
    ),
    Mutation(
        "academic-nlp-tokens-share-no-scale", "targets/academic_nlp.py",
        'Scale(PerChannel(1), divisor="half_range")', 'Scale(PerChannel(0), divisor="half_range")',
        f"{NLP}::test_embeddings_have_one_scale_a_dimension",
    ),
    Mutation(
        "nlp-quantizes-the-mask", "targets/tensorrt_nlp.py",
        ', edges=~From(Op(("mul", "div")))', "",
        f"{NLP}::test_tensorrt_leaves_the_sum_of_embeddings_and_the_mask",
    ),
    Mutation(
        "nlp-quantizes-embeddings", "targets/tensorrt_nlp.py",
        ' & ~AnyInput(Op("embedding"))', "",
        f"{NLP}::test_tensorrt_leaves_the_sum_of_embeddings_and_the_mask",
    ),
    Mutation("qdq-without-max-pool", "targets/qdq.py", '("max_pool", ', "(", parity("Tensorrt-qdq")),
    Mutation(
        "tensorrt-max-pool-of-its-own", "targets/tensorrt.py",
        'commuting=("max_pool", ', "commuting=(",
        parity("Tensorrt-tensorrt"),
    ),
    Mutation(
        "embedding-table-first", "qfunc/graph/spelling.py",
        'if name == "embedding" and node.target is not F.embedding:',
        'if name == "embedding":',
        "tests/graph/test_capture_spellings.py::test_fx_road[embedding]",
    ),
)  # fmt: skip
