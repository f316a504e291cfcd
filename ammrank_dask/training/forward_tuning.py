"""Choose parameters by what lists are worth in a later label window: the table of trials, and the choice from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from ammrank_dask.training.forward import DISAGREEMENT, ForwardResult


@dataclass(frozen=True)
class ForwardTrial:
    """Parameters and what their lists were worth: hits, by how many more than those of the first trial, and ε_dis."""

    parameters: dict[str, Any]
    hits: float
    gain: float
    standard_error: float
    disagreement: float


@dataclass(frozen=True)
class ForwardTuning:
    """Trials on the clicks of `users` in a window that none has seen; the first one has the parameters of the config.

    Examples
    --------
    >>> trials = [ForwardTrial({"kappa": 0.005}, 5.5, 0.0, 0.0, 0.12)]
    >>> trials += [ForwardTrial({"kappa": 0.1}, 5.52, 0.02, 0.03, 0.11)]
    >>> ForwardTuning(trials, users=900, k=10).best  # not ahead by more than a standard error
    {'kappa': 0.005}
    """

    trials: list[ForwardTrial]
    users: int
    k: int

    @property
    def best(self) -> dict[str, Any]:
        """The parameters with the most hits, if they are ahead of the first by more than a standard error."""
        ahead = [trial for trial in self.trials if trial.gain > trial.standard_error]
        return max(ahead, key=lambda trial: trial.hits, default=self.trials[0]).parameters

    def to_text(self) -> str:
        """Return the table, the best first; a star marks what was chosen."""
        names = sorted(self.trials[0].parameters)
        lines = [" ".join(f"{name:>18}" for name in names) + f"  hits@{self.k}   versus the config    ε_dis"]
        for trial in sorted(self.trials, key=lambda trial: -trial.hits):
            values = " ".join(f"{trial.parameters[name]:>18g}" for name in names)
            versus = f"{trial.gain:+.3f} ± {trial.standard_error:.3f}"
            star = " *" if trial.parameters == self.best else ""
            lines.append(f"{values} {trial.hits:8.3f}  {versus:>16}  {trial.disagreement:7.4f}{star}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps, and `from_json` reads."""
        return {"best": self.best, "trials": [asdict(trial) for trial in self.trials], "users": self.users, "k": self.k}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the tuning that `to_json` wrote."""
        return cls([ForwardTrial(**trial) for trial in content["trials"]], content["users"], content["k"])


def tuning_of(settings: Sequence[dict[str, Any]], result: ForwardResult) -> ForwardTuning:
    """Return the trials of settings whose models, in their order, are the sources of a result."""
    trials = []
    for parameters, source in zip(settings, result.sums, strict=True):
        behind, error = result.gain(source)
        error_of_all = result.mean(source, DISAGREEMENT)
        trials.append(ForwardTrial(parameters, result.mean(source), 0.0 - behind, error, error_of_all))
    return ForwardTuning(trials, result.n_users, result.k)
