"""The order in which the GNU C++ library sorts: that of equal elements is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_SHORT = 16

Before = Callable[[int, int], bool]


def introsort(items: Sequence[int], before: Before) -> list[int]:
    """Return the items, sorted as `std::sort` with the comparison `before` does.

    Ranges of more than 16 are divided at the median of the second, the middle and the last item, which moves to the front;
    then items move left one by one.  The heap sort of ranges that were divided badly too often is not here: it takes orders
    made for it.

    Source: libstdc++, bits/stl_algo.h.

    >>> introsort([3, 1, 2], lambda a, b: a < b)
    [1, 2, 3]
    """
    a = list(items)
    _divide(a, 0, len(a), before)
    for i in range(1, len(a)):
        _move_left(a, i, before)
    return a


def _divide(a: list[int], low: int, high: int, before: Before) -> None:
    while high - low > _SHORT:
        one, two, three = low + 1, low + (high - low) // 2, high - 1
        if before(a[one], a[two]):
            middle = two if before(a[two], a[three]) else three if before(a[one], a[three]) else one
        else:
            middle = one if before(a[one], a[three]) else three if before(a[two], a[three]) else two
        a[low], a[middle] = a[middle], a[low]
        left, right = low + 1, high
        while True:
            while before(a[left], a[low]):
                left += 1
            right -= 1
            while before(a[low], a[right]):
                right -= 1
            if left >= right:
                break
            a[left], a[right] = a[right], a[left]
            left += 1
        _divide(a, left, high, before)
        high = left


def _move_left(a: list[int], i: int, before: Before) -> None:
    item = a[i]
    while i and before(item, a[i - 1]):
        a[i], i = a[i - 1], i - 1
    a[i] = item
