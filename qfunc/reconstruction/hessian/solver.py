"""Round the columns of a weight one by one, and move those not yet rounded so that they make up for the errors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Round = Callable[[Tensor, int], Tensor]
"""(values [out], index of the column) -> their rounded values [out]."""

_AT_ONCE = 128
"""Number of columns after which all later ones are updated together."""


def inverse_factor(hessian: Tensor) -> Tensor:
    """Return the upper triangular U with  U^T U = H^-1,  from a positive definite H [in, in].

    H = R R^T for an upper triangular R, by Cholesky from the last column on, and U = R^-1.

    >>> inverse_factor(torch.tensor([[4.0, 0.0], [0.0, 0.25]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """
    reverse = torch.linalg.cholesky(hessian.flip(0, 1)).flip(0, 1)
    factor: Tensor = torch.linalg.solve_triangular(reverse, torch.eye(len(hessian)).to(hessian), upper=True)
    return factor


def round_in_order(weight: Tensor, hessian: Tensor, round_column: Round) -> Tensor:
    """Return the rounded weight of GPTQ, in the order of decreasing diagonal elements of H ("act-order").

    With U of `inverse_factor`, for each column i in order:  e = (w_i - R(w_i)) / U_ii,  w_j -= e U_ij  for all later j.  Given
    the columns that are rounded, the later ones then have the least  tr (W - V) H (W - V)^T  over all real values.

    Args:
        weight: W, [out, in].
        hessian: H, [in, in], positive definite, in the dtype of the weight.
        round_column: R.
    Returns:
        V, [out, in].
    Source: Frantar, Ashkboos, Hoefler, Alistarh, arXiv:2210.17323, algorithm 1; the order follows their code.
    """
    order = hessian.diagonal().argsort(descending=True, stable=True)
    factor = inverse_factor(hessian.double()[order][:, order]).to(weight)
    diagonal, rows, rounded = factor.diagonal().tolist(), weight.T[order].contiguous(), torch.empty_like(weight.T)
    for start in range(0, len(order), _AT_ONCE):
        block = rows[start : start + _AT_ONCE]
        stop, errors = start + len(block), torch.empty_like(block)
        columns, each = order[start:stop].tolist(), zip(block, errors, factor[start:stop], strict=True)
        for i, (row, error, influence) in enumerate(each, 1):
            new = round_column(row, columns[i - 1])
            rounded[columns[i - 1]] = new
            torch.div(row - new, diagonal[start + i - 1], out=error)
            block[i:].addr_(influence[start + i : stop], error, alpha=-1)
        rows[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    return rounded.T


def descend(weight: Tensor, rounded: Tensor, hessian: Tensor, round_column: Round) -> Tensor:
    """Return V after one more pass over all columns, each of which takes the best values given all others.

    The best real values of column j are  w_j + sum_{k != j} (w_k - v_k) H_kj / H_jj,  and R of them the best codes, if R rounds
    to nearest: the error  tr (W - V) H (W - V)^T  never increases.

    Args:
        weight, hessian, round_column: As for `round_in_order`.
        rounded: V, [out, in].
    Source: Behdin et al., QuantEase, arXiv:2309.01885, section 3.
    """
    error, result = (weight - rounded).T.contiguous(), rounded.T.clone(memory_format=torch.contiguous_format)
    diagonal = hessian.diagonal().tolist()
    for start in range(0, len(hessian), _AT_ONCE):
        influences = hessian[start : start + _AT_ONCE]
        slopes, stop = influences @ error, start + len(influences)
        each = zip(result[start:stop], error[start:stop], slopes, influences, strict=True)
        for i, (value, difference, slope, influence) in enumerate(each, start):
            new = round_column(torch.add(value, slope, alpha=1 / diagonal[i]), i)
            change = new - value
            value.copy_(new)
            difference.sub_(change)
            slopes.addr_(influence[start:stop], change, alpha=-1)
    return result.T


def error_of_rows(weight: Tensor, rounded: Tensor, hessian: Tensor) -> Tensor:
    """Return the error of each output [out]: the diagonal of (W - V) H (W - V)^T.

    >>> error_of_rows(torch.ones(1, 2), torch.zeros(1, 2), torch.eye(2))
    tensor([2.])
    """
    difference = weight - rounded
    return ((difference @ hessian) * difference).sum(1)
