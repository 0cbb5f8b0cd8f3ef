"""generate: tokens of a decoder, one by one, by a module or by a runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.decoding.cache import LENGTH_AXIS
from qfunc.errors import QfuncError, VerifyError, a_or_an, first_line
from qfunc.execution.batches import tensors_of
from qfunc.execution.evaluate import evaluated_value
from qfunc.execution.progress import track
from qfunc.graph.input_limits.ids import id_tables, require_ids
from qfunc.graph.input_limits.positions import PASS_POSITIONS, wrong_position
from qfunc.graph.record import record_of
from qfunc.lowering.artifact import Artifact

Step = Callable[[Sequence[Tensor]], Sequence[Any]]
"""A function from (ids, positions, *state) to (logits, *state), such as `runner.loaded(artifact)` of a runner."""


def generate(
    count: int, progress: bool = True, *, temperature: float = 0.0, generator: torch.Generator | None = None
) -> Callable[[nn.Module | Step, Sequence[Tensor]], Tensor]:
    """Return a function (model, inputs) -> the `count` tokens [N, count] that a decoder gives after a prompt.

    Each token is the one with the largest logit; the first of those with equal logits.  With a temperature t > 0 it is drawn
    with the probabilities softmax(logits / t).  The model reads the prompt at once and then one token at a time, each time
    with the state that it returned before.

    The model is a module (ids, positions, *state) -> (logits, *state): `Decoder.module`, or the result of `quantize`,
    `calibrate` or `emulate` for `Decoder.program`; or a function of the list of these inputs, such as
    `runner.loaded(artifact)`.  The inputs are the prompt, (ids, positions, *state), as `Decoder.inputs` returns it.

    Args:
        count: The number of tokens, at least 1.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        temperature: 0 for the largest logit.
        generator: The source of the draws, with a temperature; it is copied, so that its state does not change.
    Raises:
        VerifyError: inputs that are no prompt, positions outside of the state or twice in a row, more tokens than the state
            holds, or a model that is no decoder.
        CaptureError: ids outside of the model's table of embeddings.

    >>> def counts(given):
    ...     ids, positions, *state = given
    ...     return [nn.functional.one_hot(ids + 1, 9).float(), *state]
    >>> generate(4, progress=False)(counts, (torch.tensor([[2, 3]]), torch.tensor([[0, 1]]), torch.zeros(1, 1, 8, 1)))
    tensor([[4, 5, 6, 7]])
    """
    if temperature < 0 or (temperature > 0) != (generator is not None):
        source_given = "a generator" if generator is not None else "no generator"
        do = "Pass temperature=0.8 with generator=torch.Generator().manual_seed(0), or neither."
        wanted = "a temperature above 0 with a generator, or neither"
        raise VerifyError(where="generate", found=f"temperature {temperature} and {source_given}", wanted=wanted, do=do)

    def tokens_after(model: nn.Module | Step, inputs: Sequence[Tensor]) -> Tensor:
        require_prompt("generate", inputs, count)
        if isinstance(model, fx.GraphModule) and record_of(model) is not None:
            require_ids(id_tables(model), inputs, "generate")
        source = None if generator is None else generator.clone_state()
        step, given, tokens = step_of(model), tuple(inputs), list[Tensor]()
        for _ in track(range(count), "generate", "token", progress):
            logits, *state = _answer(step, given)
            tokens.append(next_tokens(logits, temperature, source))
            given = with_tokens(given, tokens[-1], state)
        return torch.cat(tokens, 1)

    arguments = {"count": count, "progress": progress, "temperature": temperature, "generator": generator}
    return Transform(generate, arguments, tokens_after)


def step_of(model: nn.Module | Step) -> Step:
    """Return a function of the list of inputs; a module runs without gradients, a quantized one in evaluation mode."""
    if isinstance(model, fx.GraphModule) and record_of(model) is not None:
        captured = model
        return lambda given: tensors_of(evaluated_value(captured, list(given), "generate"))
    if not isinstance(model, nn.Module):
        if not callable(model):
            do = "Load it: target.runtime.runner.loaded(artifact)." if isinstance(model, Artifact) else _PASS
            wanted = "a model, or a function of [ids, positions, *state]"
            raise VerifyError(where="generate", found=a_or_an(type(model)), wanted=wanted, do=do)
        return model
    module = model

    def step(given: Sequence[Tensor]) -> Sequence[Any]:
        with torch.inference_mode():
            value: Sequence[Any] = module(*given)
        return value

    return step


_PASS = "Pass decoder.module, or what was made of decoder.program, with decoder = qfunc.decoder(length)(model)."


def _answer(step: Step, given: tuple[Tensor, ...]) -> list[Tensor]:
    # The logits and the state of one step of a decoder.
    wanted = "a decoder: (ids, positions, *state) -> (logits [N, T, V], *state)"
    try:
        found = [torch.as_tensor(v) for v in step(given)]
    except QfuncError:
        raise
    except Exception as e:  # runtimes have error classes of their own
        raise VerifyError(where="generate", found=first_line(e), wanted=wanted, do=_PASS) from e
    shapes = [tuple(v.shape) for v in found]
    state = [tuple(v.shape) for v in given[2:]][: len(found) - 1]
    if len(found) < 2 or found[0].ndim != 3 or shapes[0][:2] != given[0].shape or shapes[1:] != state:
        found_ = f"outputs of the shapes {[list(s) for s in shapes]}"
        raise VerifyError(where="generate", found=found_, wanted=wanted, do=_PASS)
    return found


def next_tokens(logits: Tensor, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
    """Return the next token of each row, [N, 1], from the logits [N, T, V] of the last position.

    >>> next_tokens(torch.tensor([[[0.0, 9.0], [3.0, 3.0]]]))
    tensor([[0]])
    """
    last = logits[:, -1]
    if not temperature:  # the first of equal ones, on each device
        return (last == last.amax(-1, keepdim=True)).to(torch.int8).argmax(-1, keepdim=True)
    return torch.multinomial((last.double() / temperature).softmax(-1), 1, generator=generator)


def with_tokens(given: Sequence[Tensor], tokens: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the inputs of the next step: tokens [N, 1], the positions after the last ones, the state, and what follows it.

    >>> with_tokens((torch.tensor([[5, 6]]), torch.tensor([[0, 1]])), torch.tensor([[7]]), [])
    (tensor([[7]]), tensor([[2]]))
    """
    return (tokens.to(given[0].dtype), given[1][:, -1:] + 1, *state, *given[2 + len(state) :])


def require_prompt(where: str, inputs: Any, count: Any) -> None:
    """Raise if inputs are no prompt, or if the state does not hold it and the tokens after it.

    Raises:
        VerifyError: names what is wrong.
    """
    do = "Pass decoder.inputs(ids), with decoder = qfunc.decoder(length)(model)."
    tensors = isinstance(inputs, tuple | list) and all(isinstance(v, Tensor) for v in inputs)
    if not tensors or len(inputs) < 3 or inputs[0].ndim != 2 or inputs[1].shape != inputs[0].shape:
        found = f"tensors of the shapes {[list(v.shape) for v in inputs]}" if tensors else a_or_an(type(inputs))
        raise VerifyError(where=f"{where}, inputs", found=found, wanted="(ids [N, T], positions [N, T], *state)", do=do)
    if type(count) is not int or count < 1:
        raise VerifyError(where=f"{where}, count", found=repr(count), wanted="an integer of at least 1", do="Write 20.")
    if inputs[0].numel() and (least := int(inputs[0].min())) < 0:
        do = "Pass ids of the model's own tokenizer."
        raise VerifyError(where=f"{where}, inputs", found=f"the id {least}", wanted="ids from 0 on", do=do)
    length = inputs[2].shape[LENGTH_AXIS]
    if (last := int(inputs[1][:, -1].max()) + count) > length:
        do = f"Write qfunc.decoder({last})(model), or ask for fewer tokens."
        found, wanted = f"{last} tokens before the last one", f"at most {length}, the length of the state"
        raise VerifyError(where=where, found=found, wanted=wanted, do=do)
    if found := wrong_position(inputs[1], length, inputs[1]):
        wanted = f"positions from 0 to {length - 1}, each once in a row"
        raise VerifyError(where=f"{where}, inputs", found=found, wanted=wanted, do=PASS_POSITIONS)
