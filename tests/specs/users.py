"""What a user of specs writes: an estimator and a predicate, in a module of their own."""

from attrs import frozen

from qfunc.estimators import MinMax


@frozen
class Clipped:
    """A user's estimator around another."""

    inner: MinMax
    limits: tuple[float, ...] = (float("-inf"), 6.0)

    def init(self, scheme, like):
        return self.inner.init(scheme, like)

    def update(self, state, x, scheme):
        return self.inner.update(state, x.clamp(*self.limits), scheme)

    def finalize(self, state, scheme):
        return self.inner.finalize(state, scheme)


def is_deep(op):
    """A user's predicate."""
    return op.path.count(".") > 2
