"""Which groups have something to teach: the filter of dynamic sampling."""

from collections.abc import Iterable


def has_signal(values: Iterable[float], tolerance: float) -> bool:
    """Whether the values of a group differ by more than `tolerance`; those of a group of one do not.

    A group without a difference has no group-relative advantage, so DAPO (Yu et al. 2025, arXiv:2503.14476) samples
    another in its place. Compared with a tolerance, because a standard deviation of equal scores need not be exactly 0:
    that of three times 0.1 is 1.4e-17.
    """
    known = list(values)
    return bool(known) and max(known) - min(known) > tolerance
