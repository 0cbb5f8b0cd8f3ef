"""Breakages of training: BatchNorms beside quantized weights, what tensors share, what is kept."""

from mutants.mutation import Mutation

NORM, SITE = "qfunc/graph/batch_norm.py", "qfunc/graph/site.py"
LAW = "tests/training/test_batch_norm.py::test_quantizers_that_pass_through_train_the_float_model"
TESTS, FOLLOWING = "tests/training/test_training.py", "tests/training/test_following.py"

TRAINING = (
    Mutation("folded-bias-forgets-the-mean", NORM, "shift = -held * factor", "shift = 0 * held * factor", LAW),
    Mutation("transposed-groups-as-one", NORM, "if not groups:", "if True:", LAW),
    Mutation("compiled-backward-reads-new-statistics", NORM,
             "return snapshot(statistic) if torch.compiler.is_compiling() else statistic", "return statistic",
             f"{TESTS}::test_a_step_compiles_as_one_graph"),
    Mutation("kept-whatever-changes", "qfunc/graph/kept_value.py", "a[1:] == b[1:]", "True",
             f"{TESTS}::test_weights_are_quantized_once_in_evaluation"),
    Mutation("bias-scales-stay", SITE, "if self.of:", "if not self.held:",
             f"{TESTS}::test_biases_follow_the_scales_that_train"),
    Mutation("kept-bias-forgets-its-sources", SITE, "for m in (self, *self.of, *norms) for t", "for m in (self, *norms) for t",
             f"{TESTS}::test_a_kept_bias_follows_the_scale_of_the_input"),
    Mutation("following-forgets-signs", NORM, "norm.weight.detach() < 0, -1.0, 1.0", "norm.weight.detach() < 0, 1.0, 1.0",
             f"{FOLLOWING}::test_the_chip_has_the_codes_of_training"),
    Mutation("kept-weight-forgets-its-norm", SITE, "for m in (self, *self.of) for n in m.norm",
             "for m in self.of for n in m.norm", f"{FOLLOWING}::test_a_kept_weight_follows_its_norm"),
    Mutation("folded-for-good-and-yet-following", "qfunc/transforms/norms.py", "seat.module.settle()", "seat.module.own()",
             f"{FOLLOWING}::test_the_chip_has_the_codes_of_training"),
    Mutation("norms-behind-norms-are-folded", "qfunc/graph/unfold.py", "n.name if n.name in ops else n.all_input_nodes[0].name",
             "n.name if ops else n.all_input_nodes[0].name", LAW),
    Mutation("ties-train-apart", "qfunc/graph/shared.py", "own[name] = tensor", "own.get(name)",
             f"{TESTS}::test_tied_sites_hold_one_parameter"),
    Mutation("recomputation-with-new-buffers", "qfunc/transforms/checkpointing.py",
             "_put(_copies(self.forward.buffers))", "_put(self.now)",
             "tests/training/test_checkpointing.py::test_checkpointed_steps_are_the_steps_without"),
    Mutation("recomputation-writes-what-it-keeps", "qfunc/transforms/checkpointing.py",
             "_put(_copies(self.forward.buffers))", "_put(self.forward.buffers)",
             "tests/training/test_checkpointing.py::test_parts_of_a_model_checkpoint"),
    Mutation("variance-of-one-process", "qfunc/graph/sync_norm.py",
             "summed(deviation.square().sum(axes)) / count", "deviation.square().sum(axes) * wide.shape[0] / count",
             "tests/training/test_ranks.py::test_two_processes_train_as_one"),
    Mutation("activations-count-the-batch", "qfunc/recipes.py",
             "edit.activations(estimator=LsqInit(), function=Lsq(batch_axis=0))",
             "edit.activations(estimator=LsqInit(), function=Lsq())",
             "tests/training/test_ranks.py::test_two_processes_train_as_one"),
)  # fmt: skip
