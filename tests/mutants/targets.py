"""Breakages of the targets' data and of what placement makes of them."""

from mutants.mutation import Mutation

PARITY = "tests/placement/test_place_parity.py::test_every_difference_from_mqbench_is_explained"
ONE_RANGE = (
    "tests/targets/test_mqbench_targets.py::test_nnie_leaves_group_convolutions_and_gives_the_inputs_of_an_addition_one_range"
)

TARGETS = (
    Mutation(
        "snpe-without-outputs", "qfunc.targets.snpe.target:snpe",
        "bias=DerivedQParams(), output=TF",
        "bias=DerivedQParams()",
        PARITY, case="SNPE-snpe",
    ),
    Mutation(
        "snpe-narrow-ranges", "qfunc.targets.snpe.target:TF",
        "Scale(minimum_range=0.01)",
        "Scale()",
        "tests/targets/test_mqbench_targets.py::test_snpe_widens_narrow_ranges_to_a_hundredth",
    ),
    Mutation(
        "ppl-of-8-bits", "qfunc.targets.ppl_w8a16.target:ACTIVATION",
        "Int(16, signed=False)",
        "Int(8, signed=False)",
        PARITY, case="PPLW8A16-ppl_w8a16",
    ),
    Mutation(
        "ppl-cuda-per-tensor", "qfunc.targets.ppl_cuda.target:WEIGHT",
        'Scale(PerChannel(), divisor="half_range")',
        'Scale(divisor="half_range")',
        PARITY, case="PPLCUDA-ppl_cuda",
    ),
    Mutation(
        "ppl-cuda-of-127", "qfunc.targets.ppl_cuda.target:WEIGHT",
        'Scale(PerChannel(), divisor="half_range")',
        "Scale(PerChannel())",
        "tests/targets/test_mqbench_targets.py::test_ppl_cuda_divides_by_half_the_range",
    ),
    Mutation(
        "stpu-uses-the-lowest-code", "qfunc.targets.stpu.target:BYTE",
        "Int(8, low=-127)", "Int(8)", PARITY, case="STPU-stpu",
    ),
    Mutation(
        "stpu-concat-of-its-own", "qfunc.targets.stpu.target:stpu",
        'Tie(Op("concat"), ("input", "output"), "output"), ',
        "",
        "tests/targets/test_mqbench_targets.py::test_stpu_gives_the_inputs_of_a_concat_its_outputs_range",
    ),
    Mutation(
        "stpu-sigmoid-as-observed", "qfunc.targets.stpu.target:stpu",
        "output=FixedQParams(BYTE, 1 / 127)",
        "output=BYTE",
        "tests/targets/test_mqbench_targets.py::test_stpu_writes_sigmoids_at_one_whatever_was_seen",
    ),
    Mutation(
        "stpu-quantizes-what-it-folds", "qfunc.targets.stpu.target:stpu",
        ", edges=~Constant()",
        "",
        "tests/targets/test_mqbench_targets.py::test_stpu_folds_the_product_behind_a_convolution",
    ),
    Mutation(
        "nnie-with-group-convolutions", "qfunc.targets.nnie.target:nnie",
        'Rule(CONVS & ~Attr("groups", 1), input=KeepFloat(), weight=KeepFloat()),',
        "",
        PARITY, case="NNIE-nnie",
    ),
    Mutation(
        "nnie-each-input-its-own", "qfunc.targets.nnie.target:nnie",
        'ties=(Tie(Op(("add", "mul")), "input", "union"),)',
        "ties=()",
        ONE_RANGE,
    ),
    Mutation(
        "academic-last-layer-like-the-others", "qfunc.targets.academic:academic",
        "LAYERS & (First() | Last())",
        "LAYERS & First()",
        PARITY, case="Academic-academic_w4a4",
    ),
    Mutation(
        "academic-nlp-tokens-share-no-scale", "qfunc.targets.academic_nlp:academic_nlp",
        'Scale(PerChannel(1), divisor="half_range")',
        'Scale(PerChannel(0), divisor="half_range")',
        "tests/targets/test_nlp_targets.py::test_embeddings_have_one_scale_a_dimension",
    ),
    Mutation(
        "nlp-quantizes-the-mask", "qfunc.targets.tensorrt.target:tensorrt_nlp",
        ', edges=~From(Op(("mul", "div")))',
        "",
        "tests/targets/test_nlp_targets.py::test_tensorrt_leaves_the_sum_of_embeddings_and_the_mask",
    ),
    Mutation(
        "nlp-quantizes-embeddings", "qfunc.targets.tensorrt.target:tensorrt_nlp",
        ' & ~AnyInput(Op("embedding"))',
        "",
        "tests/targets/test_nlp_targets.py::test_tensorrt_leaves_the_sum_of_embeddings_and_the_mask",
    ),
    Mutation("qdq-without-max-pool", "qfunc.targets.qdq:POOLS", '("max_pool", ', "(", PARITY, case="Tensorrt-qdq"),
    Mutation(
        "tensorrt-max-pool-of-its-own", "qfunc.targets.tensorrt.target:tensorrt",
        'commuting=Op(("max_pool", *MOVES))',
        "commuting=Op(MOVES)",
        PARITY, case="Tensorrt-tensorrt",
    ),
    Mutation(
        "embedding-table-first", "qfunc.ops.canonicalize:canonical",
        'if name == "embedding" and node.target is not F.embedding:',
        'if name == "embedding":',
        "tests/ops/test_spellings.py::test_fx_road[embedding]",
    ),
)  # fmt: skip
