"""Breakages of training: BatchNorms beside quantized weights, what tensors share, what is kept."""

from mutants.mutation import Mutation

NORM, SITE = "qfunc/graph/batch_norm.py", "qfunc/graph/site.py"
LAW = "tests/training/test_batch_norm.py::test_quantizers_that_pass_through_train_the_float_model"
TESTS = "tests/training/test_training.py"

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
    Mutation("kept-bias-forgets-its-sources", SITE, "for m in (self, *self.of) for t", "for m in (self,) for t",
             f"{TESTS}::test_a_kept_bias_follows_the_scale_of_the_input"),
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
