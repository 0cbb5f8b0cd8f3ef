"""verify_tokens: does the runtime answer a prompt with the tokens that were emulated?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.analysis.verification_report import Report
from qfunc.decoding.generate import Step, generate, require_prompt, step_of
from qfunc.decoding.token_report import TokenDifference, TokenReport
from qfunc.graph.input_limits.ids import id_tables, require_ids
from qfunc.specs import Target
from qfunc.specs.protocols import LoadingRunner, Runner
from qfunc.transforms.deploy import deploy
from qfunc.transforms.emulate import emulate
from qfunc.transforms.verify import compared

__all__ = ["verify_tokens"]


def verify_tokens(target: Target, count: int, runtime: Any = None) -> Callable[[fx.GraphModule, Sequence[Tensor]], TokenReport]:
    """Return a function (calibrated, inputs) -> `TokenReport` that compares `count` tokens after a prompt.

    The emulation and the runtime each answer the prompt, with their own state, by the largest logits.  Each step of the
    emulation is then verified as `verify` does, on the inputs that it had there.  If tokens differ, the report has the first
    one, and the first unit that differs on the same inputs up to there.

    Args:
        target: The hardware that the model was quantized for.
        count: The number of tokens, at least 1.
        runtime: As for `verify`.
    Raises:
        VerifyError: inputs that are no prompt, more tokens than the state holds, or what `verify` refuses.
        CaptureError: ids outside of the model's table of embeddings.
        EmulationError: a target without public arithmetic.

    >>> from qfunc import targets
    >>> verify_tokens(targets.onnxruntime, 20).arguments["count"]
    20
    """

    def transform(calibrated: fx.GraphModule, inputs: Sequence[Tensor]) -> TokenReport:
        require_prompt("verify_tokens", inputs, count)
        steps, exact = list[tuple[Tensor, ...]](), emulate(target)(calibrated)
        require_ids(id_tables(calibrated), inputs, "verify_tokens")
        emulated = _answer(_recorded(exact, steps), inputs, count)
        report = compared(target, runtime)(calibrated, steps)
        ran = _answer(_loaded(target, runtime, deploy(target)(calibrated)), inputs, count)
        return TokenReport(_rows(emulated), _rows(ran), _first(emulated, ran, report), report)

    return Transform(verify_tokens, {"target": target, "count": count, "runtime": runtime}, transform)


def _answer(step: Step, inputs: Sequence[Tensor], count: int) -> Tensor:
    return generate(count, progress=False)(step, inputs)


def _recorded(model: nn.Module, steps: list[tuple[Tensor, ...]]) -> Step:
    # The step of a model, which appends its inputs.
    run = step_of(model)

    def step(given: Sequence[Tensor]) -> Sequence[Any]:
        steps.append(tuple(v.clone() for v in given))  # without the marks of inference mode
        return run(given)

    return step


def _loaded(target: Target, runtime: Any, artifact: Any) -> Step:
    runner = target.runtime.runner if runtime is None else runtime
    if isinstance(runner, LoadingRunner):
        return runner.loaded(artifact)
    run: Any = runner.run if isinstance(runner, Runner) else runner
    return lambda given: run(artifact, list(given))


def _rows(tokens: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, tokens.tolist()))


def _first(emulated: Tensor, ran: Tensor, report: Report) -> TokenDifference | None:
    # The first difference in time, and of that the first row.
    places = (emulated != ran).T.nonzero()
    if not len(places):
        return None
    token, row = (int(i) for i in places[0])
    found = [(r.first.batch, r.name) for r in report.rows if r.kind in ("codes", "real", "output") and r.first is not None]
    step, unit = min((f for f in found if f[0] <= token), key=lambda f: f[0], default=(-1, ""))
    return TokenDifference(row, token, int(emulated[row, token]), int(ran[row, token]), unit, step)
