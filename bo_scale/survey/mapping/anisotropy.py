"""Geometric anisotropy: correlation that reaches farther along an axis than across it.

Places are turned so that the axis is the first coordinate, and stretched across it, which makes the process isotropic:
every model, at any size, then has one lengthscale, that along the axis. Ratio and angle are those with the largest
density of the values, among log ratios r that are normal about isotropy: (r cos 2θ, r sin 2θ) ~ N(0, s² I). They are
taken only if the density is larger by a factor of e⁴: of isotropic fields 2 % would reach it without the prior.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.spatial import cKDTree
from torch import Tensor

from bo_scale.errors import SurveyError
from bo_scale.survey.mapping.matern import matern_of
from bo_scale.threads import scipy_on_one_thread

Array = npt.NDArray[np.float64]
FEWEST = 50
"""Sites from which anisotropy is learned."""
WHOLE, BLOCKS, BLOCK = 300, 12, 50
"""Sites that it is learned from, drawn at random, and of more also compact blocks of so many nearest ones."""
SPREAD = 0.7
"""s, the standard deviation of log ratios: one of 2 is a standard deviation from isotropy."""
LEAST, MOST = 1.25, 20.0
"""Ratios that are told from isotropy, and the largest one."""
TRIED = (1.8, 3.5), 8
"""Ratios, and number of angles, from which the best are starts."""
STARTS, STEPS = 2, 30
ASKED = 4.0
"""Gain of the log density from which anisotropy is taken."""
ROUNDING = 1e-6
EXACTLY = "donot_use_mm_for_euclid_dist"


@dataclass(frozen=True)
class Stretch:
    """An axis along which correlation reaches farther.

    Attributes:
        ratio: How much farther than across it, above 1.
        angle: Bearing of the axis, degrees clockwise from the north of the map, 0 to 180.
    """

    ratio: float
    angle: float

    def __post_init__(self) -> None:
        """Refuse a ratio or an angle that is none.

        Raises:
            SurveyError: saying what to give.
        """
        if not (math.isfinite(self.ratio) and 1 <= self.ratio <= 1000):
            raise SurveyError(
                f"anisotropy: the ratio {self.ratio:g} is not between 1 and 1000; give the longer range by the "
                "shorter, and the bearing of the longer."
            )
        if not (math.isfinite(self.angle) and -360 <= self.angle <= 360):
            raise SurveyError(f"anisotropy: the angle {self.angle:g} is not between -360 and 360 degrees.")

    @property
    def matrix(self) -> Array:
        """The matrix that places, as rows, are multiplied by: `2 × 2`."""
        return _matrix(self.ratio, self.angle)

    def undone(self, xy: Array) -> Array:
        """Return places in which the process is isotropic, with distances along the axis as they are."""
        return np.asarray(xy @ self.matrix)


def _matrix(ratio: float, angle: float) -> Array:
    turn = math.radians(angle)
    along, across = np.array([math.sin(turn), math.cos(turn)]), np.array([math.cos(turn), -math.sin(turn)])
    return np.stack([along, ratio * across], 1)


def sentence(stretch: tuple[float, float]) -> str:
    """Say in words how far correlation reaches."""
    ratio, angle = stretch
    return f"Correlation reaches {ratio:.2g} times as far along an axis of bearing {angle:.0f}° as across it."


def parsed(text: str) -> "Stretch | str":
    """Return what a user asks for: `ratio,angle`, "learn" or "none".

    Raises:
        SurveyError: for anything else.
    """
    words = text.strip().lower()
    if words in ("learn", "none"):
        return words
    try:
        ratio, angle = map(float, words.split(","))
    except ValueError:
        raise SurveyError(
            f"anisotropy={text!r}: give the ratio of the longer range to the shorter and the bearing of the longer, "
            "such as 3,45; or learn, or none."
        ) from None
    return Stretch(ratio, angle % 180)


def learned_stretch(
    xy: Array, z: Array, variance: Array | None, smoothness: Sequence[float] = (1.5,), noisy: bool = True
) -> Stretch | None:
    """Return the anisotropy that values ask for; None where isotropy does as well. Two seconds.

    Args:
        xy: Sites, `n × 2`, metres.
        z: Their values, without a trend.
        variance: Known variances of measurements; None if they are not known.
        smoothness: ν of the summands of the process.
        noisy: Whether measurements vary beyond known errors.
    """
    if len(np.unique(xy, axis=0)) < FEWEST or np.ptp(z) <= 1e-12 * (1 + abs(z).max()):
        return None
    groups = _groups(xy)
    unit, side = float(z.std()), float(np.linalg.norm(np.ptp(xy, axis=0)))
    errors = np.zeros(len(z)) if variance is None else variance / unit**2
    parts = [(xy[rows] / side, (z[rows] - z.mean()) / unit, errors[rows]) for rows in groups]
    data = [tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in part) for part in parts]
    lengths = np.geomspace(0.2, 0.05, len(smoothness)) if len(smoothness) > 1 else np.array([0.15])
    start = np.concatenate([[0.0, 0.0, 0.0], np.log(lengths), np.log(np.full(len(lengths), 1 / len(lengths)))])
    start = np.append(start, np.log(0.1 if noisy else ROUNDING))
    free = [(0.0, 0.0)] * 2, [(None, None)] * 2
    rest = [(None, None), *[(-7.0, 3.0)] * (2 * len(lengths)), (-12.0, 1.0) if noisy else (math.log(ROUNDING),) * 2]
    with scipy_on_one_thread():
        isotropic = _fitted(start, [*free[0], *rest], smoothness, data)
        found = [_fitted(each, [*free[1], *rest], smoothness, data) for each in _starts(isotropic, smoothness, data)]
    best = min(found, key=lambda one: one[0])
    gain, (a, b) = isotropic[0] - best[0], best[1][:2]
    ratio = math.exp(math.hypot(a, b))
    if not math.isfinite(gain) or gain < ASKED or ratio < LEAST:
        return None
    return Stretch(min(ratio, MOST), math.degrees(math.atan2(b, a) / 2) % 180)


def _groups(xy: Array) -> list[npt.NDArray[np.intp]]:
    """Return rows of sites whose joint density is taken: some of all, and compact blocks where there are more."""
    rng = np.random.default_rng(0)
    order = rng.permutation(len(xy))
    groups = [np.sort(order[:WHOLE])]
    if len(xy) > 2 * WHOLE:
        tree = cKDTree(xy)
        groups += [tree.query(xy[row], BLOCK)[1] for row in order[WHOLE : WHOLE + BLOCKS]]
    return groups


def _starts(isotropic: tuple[float, Array], smoothness: Sequence[float], data: list[tuple[Tensor, ...]]) -> list[Array]:
    """Return the starts of best density among some ratios and angles."""
    ratios, angles = TRIED
    tried = []
    for ratio in ratios:
        for theta in np.arange(angles) * np.pi / angles:
            start = isotropic[1].copy()
            start[:2] = math.log(ratio) * np.cos(2 * theta), math.log(ratio) * np.sin(2 * theta)
            start[3 : 3 + len(smoothness)] += math.log(ratio) / 2  # along the axis it is longer
            tried.append((_loss(start, smoothness, data)[0], start))
    return [start for _, start in sorted(tried, key=lambda one: one[0])[:STARTS]]


def _fitted(
    start: Array, limits: list[Any], smoothness: Sequence[float], data: list[tuple[Tensor, ...]]
) -> tuple[float, Array]:
    found = minimize(
        _loss, start, (smoothness, data), "L-BFGS-B", True, bounds=limits, options={"maxiter": STEPS, "ftol": 1e-7}
    )
    return float(found.fun), np.asarray(found.x)


def _loss(theta: Array, smoothness: Sequence[float], data: list[tuple[Tensor, ...]]) -> tuple[float, Any]:
    """Return −log density of values and of the log ratio, with its gradient; infinite where a matrix has no factor."""
    p = torch.from_numpy(theta).requires_grad_()
    loss = p[:2].square().sum() / (2 * SPREAD**2)
    for xy, z, errors in data:
        K = _covariance(p, xy, smoothness) + torch.diag(errors + p[-1].exp() + ROUNDING)
        L, failed = torch.linalg.cholesky_ex(K)
        if failed.any():
            return float("inf"), np.zeros(len(theta))
        off = torch.linalg.solve_triangular(L, (z - p[2]).unsqueeze(-1), upper=False)
        loss = loss + 0.5 * off.square().sum() + L.diagonal().log().sum()
    loss.backward()
    assert p.grad is not None
    return loss.item(), p.grad.numpy()


def _covariance(p: Float[Tensor, " k"], xy: Float[Tensor, "n 2"], smoothness: Sequence[float]) -> Float[Tensor, "n n"]:
    """Return covariances of the places stretched by p, of the sum of Matérn processes.

    With S = exp(½ [[−a', b'], [b', a']]) in east and north, distances along the axis θ from the north are divided by
    √ratio, and across it multiplied: a = r cos 2θ and b = r sin 2θ, in which the density is smooth at isotropy.
    """
    a, b, count = p[0], p[1], len(smoothness)
    r = (a * a + b * b + 1e-12).sqrt()
    even, odd = torch.cosh(r / 2), torch.sinh(r / 2) / r
    east, north = xy[:, 0], xy[:, 1]
    u = (even + odd * a) * east - odd * b * north
    v = -odd * b * east + (even - odd * a) * north
    apart = torch.cdist(torch.stack([u, v], -1), torch.stack([u, v], -1), compute_mode=EXACTLY)
    K: Any = 0.0
    for k, nu in enumerate(smoothness):
        K = K + p[3 + count + k].exp() * matern_of(nu, apart / p[3 + k].exp())
    return K
