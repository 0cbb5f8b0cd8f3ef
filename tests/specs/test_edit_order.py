"""The order of edits: the last value of a tensor's estimator, function and bits applies, whatever edits set it."""

import itertools
from collections import OrderedDict

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import recipes, targets
from qfunc.estimators import Ema, MinMax, Mse
from qfunc.functions import Dsq, Fixed, Lsq
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Algorithm, GraphInput, Int, Scheme, edit

ORT = targets.onnxruntime
FIELDS = {"estimator": (Ema(), MinMax(), Mse()), "function": (Fixed(), Lsq(), Dsq()), "bits": (3, 4, 5)}
NAMES = ("a", "b", "c")


@st.composite
def changes(draw):
    """(names or None for all, role, values), and the edit that makes the change."""
    role = draw(st.sampled_from(("weight", "activation")))
    names = [n for n in ("estimator", "function", "bits") if role == "weight" or n != "bits"]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    values = {n: draw(st.sampled_from(FIELDS[n])) for n in chosen}
    where = draw(st.none() | st.sampled_from(NAMES))
    if where is None:
        return (NAMES, role, values), (edit.weights if role == "weight" else edit.activations)(**values)
    return ((where,), role, values), edit.override(edit.name(where), **{f"{role}s": values})


@settings(max_examples=15, deadline=None)
@given(st.lists(changes(), max_size=6))
def test_in_every_sequence_of_edits_the_last_value_wins(drawn):
    """Three layers: estimator, function and bits of each weight and output against assignments to a dict, in order."""
    net = nn.Sequential(OrderedDict((n, nn.Linear(2, 2)) for n in NAMES)).eval()
    base, expected = evolve(ORT, weight=Algorithm(MinMax(), Fixed())), {}
    for names, role, values in (made for made, _ in drawn):
        for name in names:
            expected.setdefault((name, role), {}).update(values)
    sites = {
        (q.module.site.op, "weight" if q.module.site.slot == "weight" else "activation"): q.module.site
        for q in quantizer_nodes(qfunc.quantize(edit.pipe(base, *(e for _, e in drawn)))(net))
        if q.module.site.slot in ("weight", "output")
    }
    for name, role in itertools.product(NAMES, ("weight", "activation")):
        site, values = sites[name, role], expected.get((name, role), {})
        before = getattr(base, role)
        assert site.estimator == values.get("estimator", before.estimator)
        assert site.function == values.get("function", before.function)
        assert site.scheme.format.bits == values.get("bits", 8)


def test_a_rule_that_is_added_after_bits_has_its_own():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).eval()

    def bits(*edits):
        sites = (q.module.site for q in quantizer_nodes(qfunc.quantize(edit.pipe(ORT, *edits))(net)))
        return [s.scheme.format.bits for s in sites if s.slot == "weight"]

    four, eight = edit.weights(bits=4), edit.add(edit.name("0"), weight=Scheme(Int(8)))
    assert (bits(four, eight), bits(eight, four), bits(four)) == ([8, 4], [4, 4], [4, 4])
    assert bits(edit.override(edit.name("0"), weights={"bits": 8}), edit.add(edit.name("0"), weight=Scheme(Int(3)))) == [3, 8]
    assert edit.add(edit.name("0"), weight=Scheme(Int(3)))(ORT).overrides == ()


RECIPES = (recipes.dorefa, recipes.dsq, recipes.lsq, recipes.lsq_plus, recipes.pact)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(RECIPES), min_size=1, max_size=4), st.lists(st.integers(0, 4), unique=True, max_size=3))
def test_recipes_leave_the_input_as_it_was(chosen, places):
    """However many recipes come in which order; an edit of the input stays, before and after them."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).eval()
    of_input = ({"estimator": Mse()}, {"function": Dsq()}, {"estimator": Ema(), "function": Fixed()})
    edits, expected = [r() for r in chosen], {"estimator": ORT.activation.estimator, "function": ORT.activation.function}
    for place, values, select in zip(places, of_input, (GraphInput(), edit.name("input"), GraphInput()), strict=False):
        edits.insert(place, edit.override(select, activations=values))
    for one in edits:
        expected |= next((v for v in of_input if one == edit.override(GraphInput(), activations=v)), {})
        expected |= next((v for v in of_input if one == edit.override(edit.name("input"), activations=v)), {})
    target = edit.pipe(ORT, *edits)
    (site,) = [q.module.site for q in quantizer_nodes(qfunc.quantize(target)(net)) if q.tensor.startswith("input")]
    assert {"estimator": site.estimator, "function": site.function} == expected
    trained = chosen[-1]()(ORT).activation
    (other,) = [q.module.site for q in quantizer_nodes(qfunc.quantize(target)(net)) if q.module.site.name == "2"]
    assert other.function == trained.function


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_twice_is_the_recipe(recipe):
    for target in (ORT, edit.override(GraphInput(), activations={"estimator": Mse()})(ORT)):
        assert recipe()(recipe()(target)) == recipe()(target)
    after = edit.activations(estimator=Mse(), function=Dsq())(recipe()(ORT))
    assert (after.activation, after.overrides) == (Algorithm(Mse(), Dsq()), ())
