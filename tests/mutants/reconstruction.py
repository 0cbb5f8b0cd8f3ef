"""Breakages of reconstruction."""

from mutants.mutation import Mutation

RECONSTRUCTION = (
    Mutation(
        "one-number-of-images-is-told-late", "qfunc.reconstruction.reconstruct:reconstruct",
        'require_any_batch(record_of(model), "reconstruct")',
        "pass",
        "tests/reconstruction/test_errors_of_reconstruct.py::test_a_program_of_one_number_of_images",
    ),
    Mutation(
        "regions-that-are-read-outside", "qfunc.reconstruction.data_flow:regions",
        "if all(user in inside for node in inner for user in flow.readers[node]) and not inner & flow.returned:",
        "if True:",
        "tests/reconstruction/test_units_of_a_network.py::test_dominators_and_regions_are_those_of_all_paths",
    ),
    Mutation(
        "sizes-are-data", "qfunc.reconstruction.data_flow:_is_free",
        'if node.op in ("placeholder", "get_attr") or kind_of(node) == "size":',
        'if node.op in ("placeholder", "get_attr"):',
        "tests/reconstruction/test_units_of_a_network.py::test_sizes_and_tensors_of_constants_are_not_data",
    ),
    Mutation(
        "the-regulariser-pulls-to-the-middle", "qfunc.reconstruction.rounding:_Part.differentiate",
        "value=-weight * exponent * slope",
        "value=weight * exponent * slope",
        "tests/reconstruction/test_parts.py::test_the_weights_are_adarounds_soft_value_and_its_gradient_is_autograds",
    ),
    Mutation(
        "clipped-roundings-have-a-gradient", "qfunc.reconstruction.rounding:_Part.differentiate",
        "torch.ops.aten.hardtanh_backward(through, sigmoid, self.edge, 1 - self.edge, grad_input=grad)",
        "grad.copy_(through)",
        "tests/reconstruction/test_parts.py::test_the_weights_are_adarounds_soft_value_and_its_gradient_is_autograds",
    ),
    Mutation(
        "a-loss-may-rise", "qfunc.reconstruction.run_graph:Subgraph._unit",
        "if not after <= before:",
        "if False:",
        "tests/reconstruction/test_reconstruct.py::test_a_loss_that_would_rise_leaves_rounding_to_nearest",
    ),
    Mutation(
        "one-seed-for-all", "qfunc.reconstruction.optimize:_seed",
        "{method.seed} {use}",
        "{use}",
        "tests/reconstruction/test_reconstruct.py::test_the_same_arguments_give_the_same_bits_and_another_seed_others",
    ),
    Mutation(
        "earlier-errors-stay", "qfunc.numerics.moments:mixed_moments",
        "((y - x).T @ x)",
        "((x - y).T @ x)",
        "tests/reconstruction/test_least_squares.py::test_the_matching_weight_is_the_exact_optimum",
    ),
    Mutation(
        "the-target-does-not-know", "qfunc.reconstruction.hessian.replace_functions:replace_functions",
        "overrides=(*others, *changes)",
        "overrides=others",
        "tests/reconstruction/test_reconstruct.py::test_saved_loaded_and_deployed_as_other_models_are",
    ),
    Mutation(
        "ties-move", "qfunc.reconstruction.trainable:with_adaround",
        "v.copy_(torch.where(start[path] == nearest, v, _UNDECIDED * (start[path] - nearest).sign()))",
        "pass",
        "tests/reconstruction/test_reconstruct.py::test_a_loss_that_would_rise_leaves_rounding_to_nearest",
    ),
    Mutation(
        "dropped-elements-have-lsqs-gradient", "qfunc.reconstruction.random_drop:_MaskedLsq.backward",
        "            torch.lerp(grad, through, mask, out=through)",
        "            pass",
        "tests/reconstruction/test_dropping.py",
    ),
    Mutation(
        "bits-of-another-probability", "qfunc.reconstruction.random_drop:DropRate.__init__",
        "self.below = round(one * 2**self.bits)",
        "self.below = 2 ** (self.bits - 1)",
        "tests/reconstruction/test_dropping.py",
    ),
    Mutation(
        "one-digit-of-each-byte", "qfunc.reconstruction.random_drop:DropRate._ones",
        "digits.bitwise_right_shift(i * self.bits)",
        "digits.bitwise_right_shift(0)",
        "tests/reconstruction/test_dropping.py",
    ),
    Mutation(
        "the-networks-inputs-learn", "qfunc.reconstruction.run_graph:Subgraph._learning",
        "if p not in learned and quantizers[p].tensor not in self.inputs.values",
        "if p not in learned",
        "tests/reconstruction/test_reconstruct.py::test_learned_scales_are_those_of_the_result_and_fixed_ones_stay",
    ),
    Mutation(
        "inputs-beside-part-blocks", "qfunc.reconstruction.data_flow:DataFlow.__init__",
        "self.free |= self._float_masks()",
        "pass",
        "tests/reconstruction/test_units_of_a_network.py::test_inputs_that_only_join_others_part_no_blocks",
    ),
    Mutation(
        "gates-stand-alone", "qfunc.reconstruction.partition:Blocks.groups",
        "if is_gate(region, flow):",
        "if False:",
        "tests/reconstruction/test_units_of_a_network.py::test_squeeze_and_excitation_belongs_to_the_block_around_it",
    ),
    Mutation(
        "channels-last-are-forgotten", "qfunc.reconstruction.cache:_Entry.rows",
        "return stored.permute(0, 1, 4, 2, 3) if self.channels_last else stored",
        "return stored",
        "tests/reconstruction/test_reconstruct.py::test_tensors_beyond_the_budget_go_to_files_and_change_no_bit",
    ),
    Mutation(
        "parts-have-one-weight", "qfunc.reconstruction.sharing.gradients:Gradients.add",
        "n / len(index)",
        "(n > 0) / len(counts)",
        "tests/reconstruction/test_reconstruct_over_ranks.py::test_the_gradient_of_parts_is_that_of_the_mean_loss",
    ),
    Mutation(
        "each-part-has-masks-of-its-own", "qfunc.reconstruction.random_drop:DropRate.of",
        "self.generator.set_state(self.start)",
        "pass",
        "tests/reconstruction/test_dropping.py::test_the_mask_of_a_part_is_a_part_of_the_mask",
    ),
    Mutation(
        "ranks-without-images-draw-no-masks", "qfunc.reconstruction.optimize:_Training._idle",
        "if self.quantized is not None:",
        "if False:",
        "tests/reconstruction/test_reconstruct_over_ranks.py",
    ),
)  # fmt: skip
