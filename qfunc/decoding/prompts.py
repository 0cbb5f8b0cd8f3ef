"""Prompts of one or several lengths, as tokens [N, T] with a position for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qfunc.errors import CaptureError, a_or_an

_WHERE = "Decoder.inputs"
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def ids_of(prompts: Tensor | Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the tokens [N, T], and for a list of rows of several lengths the mask [N, T] of what is no padding.

    A shorter row starts with its first token as often as needed.

    Raises:
        CaptureError: no tokens.

    >>> ids_of([torch.tensor([4, 5, 6]), torch.tensor([7])])
    (tensor([[4, 5, 6],
            [7, 7, 7]]), tensor([[1, 1, 1],
            [0, 0, 1]]))
    """
    if isinstance(prompts, Tensor):
        _require_ids(_WHERE, prompts, 2)
        return prompts.long(), None
    do = "Pass the ids of the tokenizer: a tensor [N, T], or a list of tensors [T] of any lengths."
    if not isinstance(prompts, list | tuple) or not prompts:
        found = "no rows" if isinstance(prompts, list | tuple) else a_or_an(type(prompts))
        raise CaptureError(where=_WHERE, found=found, wanted="integers [N, T], or a list of rows", do=do)
    for row, prompt in enumerate(prompts):
        _require_ids(f"{_WHERE}, row {row}", prompt, 1)
    longest = max(map(len, prompts))
    ids = torch.stack([torch.cat([p[:1].expand(longest - len(p)), p]) for p in prompts]).long()
    mask = torch.stack([torch.cat([torch.zeros_like(p[:1]).expand(longest - len(p)), torch.ones_like(p)]) for p in prompts])
    return ids, mask


def _require_ids(where: str, ids: Any, rank: int) -> None:
    if isinstance(ids, Tensor) and ids.ndim == rank and ids.dtype in _INTEGERS and ids.numel():
        return
    found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else a_or_an(type(ids))
    wanted = "integers [N, T]" if rank == 2 else "integers [T]"
    do = "Pass the ids of the tokenizer: a tensor [N, T], or a list of tensors [T] of any lengths."
    if isinstance(ids, list | tuple):
        do = "Write decoder.inputs([torch.tensor(row) for row in rows]); rows may have any lengths."
    raise CaptureError(where=where, found=found, wanted=wanted, do=do)


def positions_of(ids: Tensor, mask: Tensor | None) -> Tensor:
    """Return the position of each token, [N, T]; those of the padding before a row follow its last one.

    A row of l tokens after p = T - l of padding has the positions (t - p) mod T.  What the padding writes into the cache is at
    the positions l ... T - 1, which no query sees before the tokens of the answer are written there.

    Args:
        ids: The tokens [N, T].
        mask: 1 for tokens and 0 for the padding before them, [N, T]; None for no padding.
    Raises:
        CaptureError: another mask.

    >>> positions_of(torch.tensor([[7, 7, 5, 6]]), torch.tensor([[0, 0, 1, 1]]))
    tensor([[2, 3, 0, 1]])
    """
    places = torch.arange(ids.shape[1], device=ids.device).repeat(ids.shape[0], 1)
    if mask is None:
        return places
    where, do = f"{_WHERE}, attention_mask", 'Pass tokenizer(texts, padding=True, return_tensors="pt").attention_mask, with '
    do += 'tokenizer.padding_side = "left".'
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        found = f"the shape {list(mask.shape)}" if isinstance(mask, Tensor) else a_or_an(type(mask))
        raise CaptureError(where=where, found=found, wanted=f"{list(ids.shape)}, the shape of the tokens", do=do)
    seen = mask.to(device=ids.device, dtype=torch.int64)
    wrong = (seen != mask.to(ids.device)) | (seen < 0) | (seen > 1)
    wrong[:, 1:] |= seen[:, 1:] < seen[:, :-1]
    wrong[:, -1] |= seen[:, -1] != 1
    if bool(wrong.any()):
        row = int(wrong.any(1).nonzero()[0])
        found, wanted = f"{_short(mask[row])} in row {row}", "zeros and then ones, at least one: padding on the left"
        raise CaptureError(where=where, found=found, wanted=wanted, do=do)
    return (places - (ids.shape[1] - seen.sum(1, keepdim=True))) % ids.shape[1]


def _short(row: Tensor) -> str:
    values = [f"{v:g}" for v in row[:12].tolist()]
    return f"[{', '.join(values)}{', ...' if len(row) > 12 else ''}]"
