"""Say what counts as starved and over-exposed. Imports little: config and dashboard need it too."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Thresholds:
    """What counts as starved and over-exposed, and from where on a measure of a night is a warning."""

    starved_ratio: float = 0.25
    overexposed_factor: float = 2.0
    starved_users: float = 0.01
    overexposed_users: float = 0.01
    starved_categories: float = 0.2
    changed_users: float = 0.95
    jaccard: float = 0.5
    score_shift: float = 0.5
    psi: float = 0.25


def starved(held: np.ndarray, clicks: np.ndarray, ratio: float) -> np.ndarray:
    """Tell of each category whether its exposure share is below `ratio` of its click share, or nobody holds it."""
    return (held == 0) | (share_of(held) < ratio * share_of(np.asarray(clicks)))


def share_of(counts: np.ndarray) -> np.ndarray:
    """Return the counts as shares of their sum, zeros when there is nothing."""
    return counts / max(1, counts.sum())
