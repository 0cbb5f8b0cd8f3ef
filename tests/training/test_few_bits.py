"""Few bits and folded BatchNorms: a warning where training begins, which names what trains."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
from torch import nn

import qfunc
from qfunc import recipes, targets
from qfunc.specs import edit
from tests.training.nets import net, student

WARNING = (
    "parameter_groups: found codes of 3 bits and 2 folded BatchNorms, wanted BatchNorms that train, without which training "
    "usually diverges. Write qfunc.quantize(recipes.lsq()(target), batch_norm=qfunc.TrainBatchNorm())(model), or keep the "
    "learning rates small."
)

THREE = edit.weights(bits=3)(targets.onnxruntime)


@pytest.mark.parametrize(
    "same", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["it", "copy", "pickle"]
)
def test_folded_norms_beside_few_bits_warn_with_the_cure(same: object) -> None:
    model = same(student(THREE, batch_norm=qfunc.FoldBatchNorm()))  # type: ignore[operator]
    with pytest.warns(UserWarning, match=f"^{re.escape(WARNING)}$") as record:
        qfunc.parameter_groups(model, lr=0.01)
    assert [w.filename for w in record] == [__file__]


def test_the_cure_and_all_other_models_do_not_warn() -> None:
    float_model = net()
    without = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 6))
    for target, model, norms in (
        (recipes.lsq()(THREE), float_model, qfunc.TrainBatchNorm()),
        (targets.tensorrt, float_model, qfunc.FoldBatchNorm()),
        (edit.weights(bits=5)(targets.onnxruntime), float_model, qfunc.FoldBatchNorm()),
        (THREE, without, qfunc.FoldBatchNorm()),
    ):
        assert qfunc.parameter_groups(student(target, model, batch_norm=norms), lr=0.01)
