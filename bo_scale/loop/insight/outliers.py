"""Find values that stand apart from all others, though the model was fitted to them too."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.models.left_out import Precision

LEVEL = 3e-4
"""Probability that any of n values of a Gaussian process is above the default threshold."""
FEWEST = 6
"""Smallest number of rows among which any can stand apart."""


@dataclass(frozen=True)
class Apart:
    """Values that stand apart, as predicted from all others.

    Attributes:
        rows: Their rows, in the order in which they were found.
        predicted: Predictions.
        sds: Standard deviations of the values about these.
    """

    rows: list[int]
    predicted: list[float]
    sds: list[float]


def gaussian(t: float, degrees: int) -> float:
    """Return the standard Gaussian value about as improbable as a value t of Student's t with degrees of freedom.

    D. L. Wallace. Bounds on normal approximations to Student's and the chi-square distributions. Annals of
    Mathematical Statistics 30, 1959.
    """
    return (8 * degrees + 1) / (8 * degrees + 3) * math.sqrt(degrees * math.log1p(t * t / degrees))


def default_threshold(n: int) -> float:
    """Return the distance that one of n Gaussian values exceeds with probability `LEVEL`, by Bonferroni: 4.3 to 5.1.

    Simulated false alarms with fitted models (CaGP and WISKI, draws of GPs with noise from 1 % to 300 %, 20 to 1000
    rows): none in 244 sets, whose largest distances were up to 4.1. Deterministic functions whose points crowd near the
    optimum reach more: 1 in 48 sets was above it. Of single values 10 standard deviations from the mean of 20 rows it
    finds 34 in 40, of those 10⁶ away all.
    """
    return NormalDist().inv_cdf(1 - LEVEL / (2 * n))


def standing_apart(precision: Precision, y: Float[Tensor, " n"], threshold: float, most: int) -> Apart:
    """Return values that stand apart from the rest: a generalised extreme studentised deviate test along a GP.

    The model is y ~ N(β1, s²A) with β and s² unknown, so that neither a mean nor a scale that outliers have moved hides
    them; A is the model's covariance. The row that is farthest from its prediction by the others is taken out, again
    and again. Those up to the last whose distance is above the threshold stand apart: a second outlier of the same size
    hides the first only until that is out. Distances are Student-t, with s² of the rows that are left. O(n) steps of
    O(n) each, and one product with P = A⁻¹, for every row that is taken out.

    B. Rosner. Percentage points for a generalized ESD many-outlier procedure. Technometrics 25, 1983.

    Args:
        precision: P.
        y: The values, in any unit.
        threshold: In standard deviations of a Gaussian as improbable.
        most: The most rows that are taken out.
    """
    search = _Search(precision, y)
    distances: list[float] = []
    for _ in range(min(most, len(y) - FEWEST + 1)):
        distance = search.take_out()
        if distance is None:
            break
        distances.append(distance)
    far = [k for k, each in enumerate(distances, start=1) if each > threshold]
    return _confirmed(precision, y, search.out[: max(far, default=0)], threshold)


class _Search:
    """Rows taken out one by one. P of the rest, with β profiled, is P − QQᵀ."""

    def __init__(self, precision: Precision, y: Float[Tensor, " n"]) -> None:
        self._P, self._y = precision, y
        self.out: list[int] = []
        self._Q = _of_constant(precision, y)
        self._u, self._total = _solved(precision, y, self._Q, self.out)

    def take_out(self) -> float | None:
        """Take out the row that is farthest from its prediction; return its distance, None if all rows agree."""
        diagonal = (self._P.diagonal() - self._Q.square().sum(-1)).clamp_min(1e-14 * self._P.diagonal())
        squares = self._u.square() / diagonal
        squares[self.out] = 0.0
        row = int(squares.argmax())
        square = float(squares[row])
        if square == 0.0:
            return None
        column = self._P.columns(torch.tensor([row], device=self._y.device)).squeeze(-1) - self._Q @ self._Q[row]
        self._Q = torch.cat([self._Q, (column / column[row].clamp_min(1e-300).sqrt()).unsqueeze(-1)], -1)
        self.out.append(row)
        self._u, self._total = _solved(self._P, self._y, self._Q, self.out)
        degrees = len(self._y) - 1 - len(self.out)
        variance = max(self._total / degrees, 1e-28 * square)
        return gaussian(math.sqrt(square / variance), degrees)


def _of_constant(P: Precision, y: Float[Tensor, " n"]) -> Float[Tensor, "n 1"]:
    ones = torch.ones_like(y)
    column = P.times(ones)
    return (column / (column @ ones).sqrt()).unsqueeze(-1)


def _solved(
    P: Precision, y: Float[Tensor, " n"], Q: Float[Tensor, "n k"], out: list[int]
) -> tuple[Float[Tensor, " n"], float]:
    """Return (P − QQᵀ)y and yᵀ(P − QQᵀ)y, without the digits that rows taken out would cost."""
    left = _without(y, out)[0]
    u = P.times(left)
    u = u - Q @ (Q.mT @ left)
    return u, max(float(left @ u), 0.0)


def _without(y: Float[Tensor, " n"], out: list[int]) -> tuple[Float[Tensor, " n"], Tensor]:
    """Return values less the median of those that are left, which is returned too; zero for those taken out."""
    kept = torch.ones_like(y, dtype=torch.bool)
    kept[out] = False
    middle = y[kept].median()
    return torch.where(kept, y - middle, torch.zeros_like(y)), middle


def _confirmed(P: Precision, y: Float[Tensor, " n"], out: list[int], threshold: float) -> Apart:
    """Return those of some rows that are far from their predictions by all rows but these."""
    if not out:
        return Apart([], [], [])
    rows: Int[Tensor, " k"] = torch.tensor(out, device=y.device)
    left, middle = _without(y, out)
    q = _of_constant(P, y)
    u, columns = P.times(left) - q @ (q.mT @ left), P.columns(rows) - q @ q[rows].mT
    block = columns[rows]
    solved = torch.linalg.solve(block, torch.cat([columns.mT @ left.unsqueeze(-1), torch.eye(len(out)).to(block)], -1))
    degrees = len(y) - 1 - len(out)
    total = left @ u - left @ columns @ solved[:, 0]
    scale = (total / degrees).clamp_min(0.0)
    predicted = middle - solved[:, 0]
    sds = (solved[:, 1:].diagonal() * scale).sqrt().maximum(1e-14 * (y[rows] - predicted).abs())
    kept = [k for k in range(len(out)) if gaussian(float((y[rows[k]] - predicted[k]) / sds[k]), degrees) > threshold]
    return Apart([out[k] for k in kept], predicted[kept].tolist(), sds[kept].tolist())
