"""Specs, estimators, functions, targets, and the checks of testing."""

from __future__ import annotations

from torch import nn

from qfunc import functions, specs, targets, testing
from qfunc.estimators import Ema, Entropy, MinMax, Mse, Percentile, PowerOfTwo, Quantile, StdClip
from qfunc.functions import AdaRound, Dsq, Lsq, Pact, QDrop
from qfunc.specs import FusionStep, Int, PerChannel, Rule, Scale, Scheme
from tests.wrong_uses.world import TARGET, Row

# fmt: off
ROWS: tuple[Row, ...] = (
    ("bits as text", lambda w: Int("8"), "SpecError",
     "Int.bits: found '8', wanted an int in [2, 64]. Give such a number."),
    ("bits beyond all", lambda w: Int(100), "SpecError",
     "Int.bits: found 100, wanted an int in [2, 64]. Give such a number."),
    ("a float of negative exponent", lambda w: specs.Float(-1, 3), "SpecError",
     "Float.exponent: found -1, wanted an int in [1, 11]. Give such a number."),
    ("an axis by name", lambda w: PerChannel("out"), "SpecError",
     'PerChannel.axis: found \'out\', wanted an int or "channel". Name the axis.'),
    ("a scale by name", lambda w: Scale("channel"), "SpecError",
     "Scale.shared: found 'channel', wanted PerTensor or PerChannel or PerBlock or PerToken. Give a value such as "
     "PerTensor(...)."),
    ("a scheme in bits", lambda w: Scheme(8), "SpecError",
     "Scheme.format: found 8, wanted Int or Float or Log or Levels. Give a value such as Int(...)."),
    ("a rounding that is none", lambda w: Scheme(Int(8), rounding="round"), "SpecError",
     "Scheme.rounding: found 'round', wanted one of 'half_even', 'half_away', 'half_up', 'half_down', 'half_to_zero', "
     "'floor', 'trunc', 'stochastic', 'half_even_on_index', 'half_up_on_index', "
     "'negative_ceil_else_half_even'. Choose one of them."),
    ("levels in disorder", lambda w: specs.Levels((3.0, 1.0)), "SpecError",
     "Levels.values: found (3.0, 1.0), wanted strictly increasing finite numbers. Sort them and drop repeats."),
    ("a rule by text", lambda w: Rule("conv", input=Scheme()), "SpecError",
     "Rule.select: found 'conv', wanted a selector. Use edit.name, edit.op, edit.module or edit.where, or combine them "
     "with &, | and ~."),
    ("a step by text", lambda w: FusionStep("relu"), "SpecError",
     "FusionStep.op: found 'relu', wanted a selector. Use edit.name, edit.op, edit.module or edit.where, or combine them with "
     "&, | and ~."),
    ("a difference to a name", lambda w: specs.diff(TARGET, "tensorrt"), "SpecError",
     "diff: found 'tensorrt', wanted a spec. Pass two targets, or two values of qfunc.specs."),
    ("a difference to a model", lambda w: specs.diff(nn.ReLU(), TARGET), "SpecError",
     "diff: found ReLU(), wanted a spec. Pass two targets, or two values of qfunc.specs."),
    ("JSON of a model", lambda w: specs.to_json(nn.ReLU()), "SpecError",
     "to_json: found the ReLU ReLU(), wanted a value frozen all the way down. Hold numbers, texts, tuples and frozen "
     "attrs values only."),
    ("JSON of a text", lambda w: specs.to_json("tensorrt"), "SpecError",
     "to_json: found 'tensorrt', wanted a spec. Pass a target, or another value of qfunc.specs."),
    ("a path in place of JSON", lambda w: specs.from_json("target.json"), "SpecError",
     "from_json: found no JSON (Expecting value: line 1 column 1 (char 0)), wanted JSON text. Give what to_json wrote."),
    ("JSON of something else", lambda w: specs.from_json("{}"), "SpecError",
     'from_json: found {}, wanted {"schema": 1, "spec": ...}. Give what to_json wrote.'),
    ("classes by name", lambda w: specs.from_json(specs.to_json(TARGET), classes="Mine"), "SpecError",
     "from_json, classes: found 'Mine', wanted a tuple of frozen classes and functions. Write from_json(text, "
     "classes=(Mine,))."),
    ("an average of a class", lambda w: Ema(MinMax), "SpecError",
     "Ema.inner: found <class 'qfunc.estimators.minmax.MinMax'>, wanted an estimator that offers range(state, scheme) "
     "-> Range. Give one of them, such as MinMax() or StdClip()."),
    ("an average of a name", lambda w: Ema("minmax"), "SpecError",
     "Ema.inner: found 'minmax', wanted an estimator that offers range(state, scheme) -> Range. Give one of them, such "
     "as MinMax() or StdClip()."),
    ("an average that never moves", lambda w: Ema(decay=1), "SpecError",
     "Ema.decay: found 1, wanted a number in [0, 1). Give such a number."),
    ("a norm of 0", lambda w: Mse(p=0), "SpecError",
     "Mse.p: found 0, wanted a number in (0, 16]. Give 2.0 or another norm."),
    ("ranges narrower than the data's", lambda w: Mse(widest=0.5), "SpecError",
     "Mse.widest: found 0.5, wanted a number in [1, 2]. Give 1.0, 1.5 or 2.0."),
    ("a quantile in percent", lambda w: Quantile(99.99), "SpecError",
     "Quantile.q: found 99.99, wanted a number in (0, 1]. Give such a number."),
    ("percentiles in disorder", lambda w: Percentile(99.9, 0.1), "SpecError",
     "Percentile.low, high: found (99.9, 0.1), wanted 0 <= low < high <= 100 percent. Give such numbers."),
    ("a negative deviation", lambda w: StdClip(-1), "SpecError",
     "StdClip.k: found -1, wanted a finite number above 0. Give such a number."),
    ("entropy by name", lambda w: Entropy("kl"), "SpecError",
     "Entropy.bins: found 'kl', wanted a power of two in [256, 65536]. Give 4096 or another one."),
    ("powers of two of a number", lambda w: PowerOfTwo(5), "SpecError",
     "PowerOfTwo.inner: found 5, wanted an estimator. Give an estimator such as MinMax()."),
    ("a negative clipping value", lambda w: Pact(alpha=-1), "SpecError",
     "Pact.alpha: found -1, wanted a finite positive number or None. Give such a number."),
    ("a probability of 2", lambda w: QDrop(p=2), "SpecError",
     "QDrop.p: found 2, wanted a number in (0, 1]. Give such a number."),
    ("dropping a class", lambda w: QDrop(Lsq), "SpecError",
     "QDrop.inner: found <class 'qfunc.functions.lsq.Lsq'>, wanted a frozen value with the methods init, apply, export. "
     "Call it: Lsq()."),
    ("rounding of a name", lambda w: AdaRound("fixed"), "SpecError",
     "AdaRound.inner: found 'fixed', wanted a frozen value with the methods init, apply, export. Add init, apply, export."),
    ("a temperature of 2", lambda w: Dsq(alpha=2), "SpecError",
     "Dsq.alpha: found 2, wanted a number in [0.001, 0.499]. Use the usual 0.4 or 0.2."),
    ("no gradient", lambda w: functions.with_gradient(None, None), "SpecError",
     "WithGradient.forward: found None, wanted a module-level function or a frozen callable value. Write a function of "
     "x and the parameters."),
    ("a target of 1 bit", lambda w: targets.academic(1, 4), "SpecError",
     "Int.bits: found 1, wanted an int in [2, 64]. Give such a number."),
    ("a target of bits as text", lambda w: targets.academic("4", 4), "SpecError",
     "Int.bits: found '4', wanted an int in [2, 64]. Give such a number."),
    ("checking the name of a target", lambda w: testing.check_target("tensorrt"), "SpecError",
     "testing.check_target: found 'tensorrt', wanted a Target. Pass the value: one of qfunc.targets, or your own "
     "specs.Target."),
    ("checking a family", lambda w: testing.check_target(targets.academic), "SpecError",
     "testing.check_target: found the function academic, wanted a Target. Call it: academic(...)."),
    ("checking no examples", lambda w: testing.check_target(TARGET, examples=0), "SpecError",
     "testing.check_target, examples: found 0, wanted an int of at least 1. Give a number such as 15."),
    ("checking the class of an estimator", lambda w: testing.check_estimator(Mse), "SpecError",
     "testing.check_estimator: found the class Mse, wanted a frozen value with the methods init, update, finalize. Call "
     "it: Mse()."),
    ("checking a function as estimator", lambda w: testing.check_estimator(Lsq()), "SpecError",
     "testing.check_estimator: found a Lsq, wanted a frozen value with the methods init, update, finalize. Add update, "
     "finalize."),
    ("checking a name as function", lambda w: testing.check_function("lsq"), "SpecError",
     "testing.check_function: found 'lsq', wanted a frozen value with the methods init, apply, export. Add init, apply, "
     "export."),
    ("checking an estimator as function", lambda w: testing.check_function(Mse()), "SpecError",
     "testing.check_function: found a Mse, wanted a frozen value with the methods init, apply, export. Add apply, export."),
)
# fmt: on
