"""Breakages of reconstruction."""

from mutants.mutation import Mutation

HERE, TESTS = "qfunc/reconstruction", "tests/reconstruction"

RECONSTRUCTION = (
    Mutation(
        "one-number-of-images-is-told-late", f"{HERE}/reconstruct.py",
        'require_any_batch(record_of(graph), "reconstruct")',
        "pass",
        f"{TESTS}/test_errors_of_reconstruct.py::test_a_program_of_one_number_of_images",
    ),
    Mutation(
        "regions-that-are-read-outside", f"{HERE}/regions.py",
        "if all(user in inside for node in inner for user in flow.behind[node]) and not inner & flow.returned:",
        "if True:",
        f"{TESTS}/test_units_of_a_network.py::test_dominators_and_regions_are_those_of_all_paths",
    ),
    Mutation(
        "sizes-are-data", f"{HERE}/flow.py",
        'if node.op == "get_attr" or kind_of(node) in ("size", "full", "arange"):',
        'if node.op == "get_attr":',
        f"{TESTS}/test_units_of_a_network.py::test_attention_with_a_mask_and_a_perceptron",
    ),
    Mutation(
        "the-regulariser-pulls-to-the-middle", f"{HERE}/rounding.py",
        "value=-2 * weight * exponent",
        "value=2 * weight * exponent",
        f"{TESTS}/test_parts.py::test_the_weights_are_adarounds_soft_value_and_its_gradient_is_autograds",
    ),
    Mutation(
        "clipped-roundings-have-a-gradient", f"{HERE}/rounding.py",
        "torch.ops.aten.hardtanh_backward(through, sigmoid, edge, 1 - edge, grad_input=given)",
        "given.copy_(through)",
        f"{TESTS}/test_parts.py::test_the_weights_are_adarounds_soft_value_and_its_gradient_is_autograds",
    ),
    Mutation(
        "a-loss-may-rise", f"{HERE}/part.py",
        "if not after <= before:",
        "if False:",
        f"{TESTS}/test_reconstruct.py::test_a_loss_that_would_rise_leaves_rounding_to_nearest",
    ),
    Mutation(
        "one-seed-for-all", f"{HERE}/loop.py",
        "{method.seed} {what}",
        "{what}",
        f"{TESTS}/test_reconstruct.py::test_the_same_arguments_give_the_same_bits_and_another_seed_others",
    ),
    Mutation(
        "the-target-does-not-know", f"{HERE}/sites.py",
        "overrides=(*kept, *changes)",
        "overrides=kept",
        f"{TESTS}/test_reconstruct.py::test_saved_loaded_and_deployed_as_other_models_are",
    ),
    Mutation(
        "ties-move", f"{HERE}/sites.py",
        "v.copy_(torch.where(start == nearest, v, _JUST * (start - nearest).sign()))",
        "pass",
        f"{TESTS}/test_reconstruct.py::test_a_loss_that_would_rise_leaves_rounding_to_nearest",
    ),
    Mutation(
        "dropped-elements-have-lsqs-gradient", f"{HERE}/dropping.py",
        "            torch.lerp(grad, through, mask, out=through)",
        "            pass",
        f"{TESTS}/test_dropping.py",
    ),
    Mutation(
        "bits-of-another-probability", f"{HERE}/dropping.py",
        "self.below = round(one * 2**self.bits)",
        "self.below = 2 ** (self.bits - 1)",
        f"{TESTS}/test_dropping.py",
    ),
    Mutation(
        "one-digit-of-each-byte", f"{HERE}/dropping.py",
        "digits.bitwise_right_shift(i * self.bits)",
        "digits.bitwise_right_shift(0)",
        f"{TESTS}/test_dropping.py",
    ),
    Mutation(
        "the-networks-inputs-learn", f"{HERE}/part.py",
        "if p not in learned and places[p].tensor not in self.inputs.values",
        "if p not in learned",
        f"{TESTS}/test_reconstruct.py::test_learned_scales_are_those_of_the_result_and_fixed_ones_stay",
    ),
    Mutation(
        "inputs-beside-part-blocks", f"{HERE}/flow.py",
        "self.free |= self._beside()",
        "pass",
        f"{TESTS}/test_units_of_a_network.py::test_inputs_that_only_join_others_part_no_blocks",
    ),
    Mutation(
        "gates-stand-alone", f"{HERE}/partition.py",
        "if is_gate(region, flow):",
        "if False:",
        f"{TESTS}/test_units_of_a_network.py::test_squeeze_and_excitation_belongs_to_the_block_around_it",
    ),
    Mutation(
        "channels-last-are-forgotten", f"{HERE}/cache.py",
        "return kept.permute(0, 1, 4, 2, 3) if self.turned else kept",
        "return kept",
        f"{TESTS}/test_reconstruct.py::test_tensors_beyond_the_budget_go_to_files_and_change_no_bit",
    ),
)  # fmt: skip
