"""Academic and Academic_NLP, given the schemes that the golden data were recorded with."""

from parity.table import Backend, Explained

from qfunc import targets
from qfunc.specs import PerTensor, edit

AS_RECORDED = (edit.weights(granularity=PerTensor()), edit.activations(symmetric=True, signed=True))
LAST = (
    "MQBench knows the last layer only where it makes the graph's output itself; here ReLU, average and flatten stand between"
)

ACADEMIC = (
    Backend(
        "Academic",
        edit.pipe(targets.academic(4, 4), *AS_RECORDED),
        (
            Explained("a", "activation", "cat_7", "-8..7", "-128..127", {"squeezenet1_0": 1}, LAST),
            Explained("a", "weight", "classifier.1", "-8..7", "-128..127", {"squeezenet1_0": 1}, LAST),
        ),
    ),
    Backend("Academic_NLP", edit.pipe(targets.academic_nlp(4, 4), *AS_RECORDED)),
)
