"""check_target: the laws of targets, for qfunc's own and for vendors'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis.strategies import SearchStrategy, integers, tuples
from torch import Tensor, nn

from qfunc.execution.batches import tensors_of, warn_caller
from qfunc.execution.distributed import ranks, require_group
from qfunc.placement.without_effect.required_units import without_required_units
from qfunc.specs import Target
from qfunc.testing.default_networks import default_networks
from qfunc.testing.large_sums import large_sums
from qfunc.testing.laws.arithmetic import ARITHMETIC_LAWS
from qfunc.testing.laws.artifact import ARTIFACT_LAWS
from qfunc.testing.laws.placement import TRIAL_LAWS, transforms_are_pure
from qfunc.testing.laws.target import TARGET_LAWS
from qfunc.testing.overflow_models import overflow_models
from qfunc.testing.pipeline import BEFORE_TIES, BESIDE_POWERS, BESIDE_TIES, POWERS, Example, Pipeline
from qfunc.testing.shares import gather_results
from qfunc.testing.validate import exemptions, require_broken, require_examples
from qfunc.transforms.validate import require_target_value

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Model = tuple[nn.Module, Example]
Run = Callable[[Any, Sequence[Tensor]], Sequence[Any]]
MODEL_LAWS = (*TRIAL_LAWS, *ARITHMETIC_LAWS, *ARTIFACT_LAWS, transforms_are_pure)
"""The laws of a target with a model, in the order in which they are checked."""
TRIALS = (
    (None, MODEL_LAWS),
    (POWERS, MODEL_LAWS),
    *((rescaling, ARITHMETIC_LAWS) for rescaling in (BESIDE_POWERS, BESIDE_TIES, BEFORE_TIES)),
)
"""The scales with which each model is checked, and the laws."""


def check_target(
    target: Target,
    *,
    run: Run | None = None,
    models: Iterable[Model] | SearchStrategy[Model] | None = None,
    examples: int = 15,
    settings: hypothesis.settings | None = None,
    exempt: Mapping[str, str] | None = None,
    group: ProcessGroup | None = None,
) -> None:
    """Check that a target satisfies the library's laws; needs no test framework.

    Messages name the law.  Laws of the target as a value:

    * round_trips, sources_have_text, kinds_exist, selectors_can_match, formats_fit_kernels,
      derived_biases_have_sources, refused_ops_have_no_rule, nearest_can_be_emulated;
    * commuting_ops_commute: Q(op(x)) = op(Q(x)) for each kind in `commuting`.

    Laws on each model, checked as calibrated and again with every scale rounded up to a power of two, which creates
    many rounding ties. The laws of the simulation, the emulation and the runtime are also checked with every scale
    next to a power of two, 2^j (1 +- 2^-k), and with scales that put a value of each tensor, and of each channel of a
    weight, next to a tie:

    * placement: legality_accepts_the_rules, quantizes, calibrates, ties_share_qparams, moved_codes_keep_qparams;
    * qparams: scales_are_allowed, limits_hold, dictated_qparams_are_exact, biases_have_the_product_of_scales,
      weights_scale_by_output_channel, zero_is_exact, exported_codes_match_the_simulation;
    * simulation_is_within_one_code of the emulation, unit by unit, with the emulation's codes as inputs: both round
      the same real number to the nearest code, so they differ by at most one code if the float error of the sum,
      below (K + 4) 2^-24 sum|x w| / s_y for K products, is below one code; the error of the reciprocals of average
      pools is added, and elements whose accumulators overflow are left out;
    * emulates, emulation_matches_the_runtime: equal at the outputs, and at every integer tensor if the runner exposes
      them; unknown_arithmetic_is_refused if it is not public;
    * the artifact: deploys, lowering_is_pure_and_deterministic, artifact_loads, artifact_holds_the_constants,
      artifact_computes_the_simulation (what ONNX Runtime can run), side_files_name_tensors, side_files_hold_the_qparams;
    * transforms_are_pure: quantize, calibrate, emulate and deploy do not change their inputs.

    Args:
        target: The hardware.
        run: run(artifact, inputs) -> outputs, a chip or its simulator; None for the target's own runner. Without either, a
            warning says that the emulation is compared with nothing.
        models: (module, input) pairs, or a strategy of them; an input is a tensor or a tuple of tensors.  None for
            `strategies.small_models()`, or for networks of those of its ops that the target takes, after layers whose sums
            are large beside their codes (biases of 2^22 to 2^29), and networks whose sums overflow the accumulators of the
            target's kernels, if layers of up to 4,096 inputs do.  They also have ops that the target leaves in float, such as
            a global mean, which the runner executes as well; beside these, errors of one code are not seen at the outputs.
            So give models of the chip's own ops if the runner shows outputs only; `strategies.networks_of` draws networks of
            one op, and `check_each_kind` checks each kind of op with them.
        examples: The number of models drawn from a strategy.
        settings: Hypothesis settings in place of `examples` derandomized examples.
        exempt: Laws that the target breaks by design, each with the reason: {law: reason}.
        group: The processes that share the models, of which each is checked by one; by default the default group of
            torch.distributed, if there is one. All its processes must call this with the same arguments.
    Raises:
        SpecError: not a target, not a number of examples, a name in `exempt` that is not a law, or no `models` for a target
            that quantizes no op of `strategies.small_models` and of `strategies.networks_of`.
        AssertionError: the law that fails and the difference; for models, the smallest one found, as code, the first
            unit that differs, its codes, sums and qparams, and what all its codes that differ have in common; or an exempt
            law of the target as a value that holds. The other processes of a group raise it too, and name the rank.
    """
    require_target_value(target, "testing.check_target")
    require_examples(examples, "check_target")
    require_group(group, "check_target")
    exempt = exemptions(exempt, (law.__name__ for law in (*TARGET_LAWS, *MODEL_LAWS)), "check_target")
    for law in TARGET_LAWS:
        if law.__name__ in exempt:
            require_broken(partial(law, target), law.__name__, f"check_target({target.name})")
        else:
            _keep(law, target, target)

    def share(rank: int, number: int) -> _Found:
        return _check_models(target, run, models, examples, settings, exempt, rank, number)

    found = gather_results(share, ranks(group), AssertionError)
    if models is None or isinstance(models, SearchStrategy):
        _warn_if_coarse(target, [kinds for part in found for kinds in part[0]])
    _warn_if_alone(target, [alone for part in found for alone in part[1]])


_Found = tuple[list[set[str]], list[bool]]
"""For each model that was checked, as calibrated and with powers of two: its ops in float, and whether nothing ran it."""


def _check_models(
    target: Target,
    run: Run | None,
    models: Any,
    examples: int,
    settings: Any,
    exempt: Mapping[str, str],
    rank: int,
    number: int,
) -> _Found:
    # Check the part of the models that is one rank's.
    target = without_required_units(target)
    coarse: list[set[str]] = []
    alone: list[bool] = []

    def check(model: Model | None) -> None:
        if model is None:  # that of another rank
            return
        calibrated = Pipeline(target, run, *model)
        for rescaling, laws in TRIALS:
            trial = calibrated if rescaling is None else calibrated.rescaled(rescaling)
            for law in laws:
                if law.__name__ not in exempt:
                    _keep(law, trial, target, f"\n{trial}")
            coarse.append(trial.float_kinds)
            alone.append(trial.alone)

    if models is not None and not isinstance(models, SearchStrategy):
        for model in islice(models, rank, None, number):
            check(model)
        return coarse, alone
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.filter_too_much]
    chosen = settings or hypothesis.settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, report_multiple_bugs=False, print_blob=False,
        phases=[Phase.explicit, Phase.generate, Phase.shrink], suppress_health_check=slow,
    )  # fmt: skip
    if models is None:
        for model in islice((*overflow_models(target), *large_sums(target)), rank, None, number):
            check(model)
    strategy: SearchStrategy[Any] = default_networks(target) if models is None else models
    if number > 1:  # all ranks draw the same; the rank is drawn with the model, so that a failure is shrunk on that rank
        strategy = tuples(strategy, integers(0, number - 1)).map(lambda drawn: drawn[0] if drawn[1] == rank else None)
    chosen(given(strategy.map(_Shown))(lambda shown: check(shown.model)))()
    return coarse, alone


def _warn_if_alone(target: Target, alone: Sequence[bool]) -> None:
    # A simulator that was forgotten would otherwise pass.
    if any(alone):
        warn_caller(
            f"check_target({target.name}): found no runtime, so that the emulation is compared with nothing, wanted a chip or "
            "its simulator. Pass run=run, where run(artifact, inputs) -> outputs."
        )


def _warn_if_coarse(target: Target, coarse: Sequence[set[str]]) -> None:
    # A chip that rounds otherwise would pass on all networks drawn.
    if coarse and all(coarse):
        kinds = ", ".join(sorted(set().union(*coarse)))
        warn_caller(
            f"check_target({target.name}): found ops in float in each network ({kinds}), beside which errors of "
            "one code are not seen at the outputs, wanted a network of the chip's integer ops. Give models= of them, or a "
            "runner with `inside`."
        )


def _keep(law: Callable[[Any], None], value: Any, target: Target, suffix: str = "") -> None:
    try:
        law(value)
    except Exception as e:
        found = str(e) if isinstance(e, AssertionError) else f"{type(e).__name__}: {e}"
        raise AssertionError(f"check_target({target.name}), law {law.__name__!r}: {found}{suffix}") from e


class _Shown:
    """A drawn model with code as its repr; None for the model of another rank."""

    def __init__(self, model: Model | None) -> None:
        self.model = model

    def __repr__(self) -> str:
        if self.model is None:
            return "None"
        inputs = ", ".join(f"torch.randn({tuple(leaf.shape)})" for leaf in tensors_of(self.model[1]))
        return f"({self.model[0]!r}, {inputs})"
