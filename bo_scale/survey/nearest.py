"""Predictions from the nearest sites, for maps of many: as fine as the sites, where a grid of a model is coarser.

f(x) given the k nearest sites is close to f(x) given all of them, for near sites screen the others; hyperparameters are
those under which sites have the largest density given their own nearest (A. V. Vecchia, Estimation and model
identification for continuous spatial processes, JRSS B 50, 1988; A. Datta, S. Banerjee, A. O. Finley, A. E. Gelfand,
Hierarchical nearest-neighbor Gaussian process models for large geostatistical datasets, JASA 111, 2016).
"""

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
from tqdm import tqdm

from bo_scale.errors import NotPositiveDefiniteError

Array = npt.NDArray[np.float64]
NEIGHBOURS = 30
"""Sites that a place is predicted from."""
SCORED = 2000
"""Sites that hyperparameters are fitted to, each with its neighbours; drawn at random."""
STEPS = 60
SPAN = (1e-3, 10.0)
"""Of lengthscales, in diagonals of the sites' box."""
VARIANCES = (1e-3, 100.0)
"""Of the process, in variances of the values: the larger ones go with lengthscales beyond the area."""
NOISE = (1e-6, 1.0)
"""Of measurements, in variances of the values."""
CHUNK = 4000
"""Places that are predicted at once."""
EXACTLY = "donot_use_mm_for_euclid_dist"
"""How `cdist` computes: by products, distances of near sites would lose their digits."""


@dataclass(frozen=True)
class Nearest:
    """A Matérn process of one lengthscale, on the scale of the values; plain numbers, as JSON can hold them.

    Attributes:
        smoothness: ν, one of 0.5, 1.5, 2.5.
        lengthscale: Metres.
        mean: Of the process.
        variance: Of the process.
        noise: Variance of measurements, beyond errors that are known.
    """

    smoothness: float
    lengthscale: float
    mean: float
    variance: float
    noise: float

    @classmethod
    def fitted(cls, xy: Array, z: Array, known: Array | None, smoothness: Sequence[float]) -> "Nearest":
        """The smoothness, and the numbers, with the largest density of sites given their neighbours. Seconds.

        Args:
            xy: `n × 2`, metres; more than `NEIGHBOURS`.
            z: `n`, not all the same.
            known: Variances of measurements, where they are known.
            smoothness: To choose from.

        Raises:
            NotPositiveDefiniteError: if none can be fitted.
        """
        rows = np.sort(np.random.default_rng(0).permutation(len(z))[:SCORED])
        around = cKDTree(xy).query(xy[rows], NEIGHBOURS + 1)[1]
        others = np.stack([row[row != own][:NEIGHBOURS] for own, row in zip(rows, around, strict=True)])
        side, spread = float(np.linalg.norm(np.ptp(xy, axis=0))), float(z.var())
        errors = np.zeros(len(z)) if known is None else known
        local = _Local.of(xy, z - z.mean(), errors, xy[rows], others)
        target = torch.from_numpy(z[rows] - z.mean()), torch.from_numpy(errors[rows])
        start = np.log([0.1 * side, spread, 0.1 * spread])
        limits = [np.multiply(SPAN, side), np.multiply(VARIANCES, spread), np.multiply(NOISE, spread)]
        best: tuple[float, float, Array] | None = None
        for nu in smoothness:
            found = minimize(
                _loss, start, (nu, local, target), "L-BFGS-B", True, bounds=np.log(limits), options={"maxiter": STEPS}
            )
            if np.isfinite(found.fun) and (best is None or found.fun < best[0]):
                best = float(found.fun), nu, np.exp(found.x)
        if best is None:
            raise NotPositiveDefiniteError("no process of the nearest sites could be fitted")
        lengthscale, variance, noise = best[2].tolist()
        return cls(best[1], lengthscale, float(z.mean()), variance, noise)

    def forecast(
        self, xy: Array, z: Array, known: Array | None, places: Array, progress: bool | None
    ) -> tuple[Array, Array]:
        """Means and standard deviations of the quantity itself at places. O(k³) a place.

        Args:
            xy: Sites, `n × 2`, metres.
            z: Their values.
            known: Variances of measurements, where they are known.
            places: `m × 2`, metres.
            progress: Whether to show a bar; None for only on a terminal.
        """
        tree, count = cKDTree(xy), min(NEIGHBOURS, len(z))
        errors, means, sds = np.zeros(len(z)) if known is None else known, [], []
        parts = np.array_split(places, max(1, -(-len(places) // CHUNK)))
        disable = None if progress is None else not progress
        with torch.no_grad():
            theta = torch.tensor([self.lengthscale, self.variance, self.noise], dtype=torch.float64)
            for part in tqdm(parts, desc="map", disable=disable if len(parts) > 1 else True):
                around = tree.query(part, count)[1].reshape(len(part), count)
                mean, variance = _Local.of(xy, z - self.mean, errors, part, around).given(theta, self.smoothness)
                means.append(self.mean + mean.numpy())
                sds.append(variance.clamp_min(0.0).sqrt().numpy())  # at sites without noise rounding leaves some −1e-16
        return np.concatenate(means), np.concatenate(sds)


@dataclass(frozen=True)
class _Local:
    """Places with their neighbours.

    Attributes:
        within: Distances of the neighbours from each other, metres.
        to: From the place, metres.
        values: At the neighbours, less the mean.
        errors: Variances that are known, of the values.
    """

    within: Float[Tensor, "m k k"]
    to: Float[Tensor, "m k"]
    values: Float[Tensor, "m k"]
    errors: Float[Tensor, "m k"]

    @classmethod
    def of(cls, xy: Array, z: Array, errors: Array, places: Array, around: npt.NDArray[np.intp]) -> "_Local":
        sites, place = torch.from_numpy(xy[around]), torch.from_numpy(places).unsqueeze(1)
        values, known = torch.from_numpy(z[around]), torch.from_numpy(errors[around])
        return cls(torch.cdist(sites, sites, compute_mode=EXACTLY), (sites - place).norm(dim=-1), values, known)

    def given(self, theta: Float[Tensor, "3"], nu: float) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Means and variances of the process at the places: K L⁻ᵀ L⁻¹ z and k − K L⁻ᵀ L⁻¹ Kᵀ."""
        lengthscale, variance, noise = theta
        K = variance * _correlation(self.within / lengthscale, nu) + torch.diag_embed(noise + self.errors)
        across = variance * _correlation(self.to / lengthscale, nu)
        L, failed = torch.linalg.cholesky_ex(K)
        if failed.any():
            raise NotPositiveDefiniteError("covariance of the nearest sites")
        both = torch.linalg.solve_triangular(L, torch.stack([across, self.values], -1), upper=False)
        return (both[..., 0] * both[..., 1]).sum(-1), variance - both[..., 0].square().sum(-1)


def _loss(log: Array, nu: float, local: _Local, target: tuple[Tensor, Tensor]) -> tuple[float, Any]:
    """−log density of values given those around, a site, with its gradient; infinite where a matrix has no factor."""
    theta = torch.from_numpy(log).requires_grad_()
    try:
        mean, variance = local.given(theta.exp(), nu)
    except NotPositiveDefiniteError:
        return float("inf"), np.zeros(3)
    variance = variance.clamp_min(0.0) + theta[2].exp() + target[1]  # only rounding makes the first negative
    loss = 0.5 * ((target[0] - mean).square() / variance + variance.log()).mean()
    loss.backward()
    assert theta.grad is not None
    return loss.item(), theta.grad.numpy()


def _correlation(r: Tensor, nu: float) -> Tensor:
    """Matérn's, at distances in lengthscales; for autograd, which `functionals.profiles` work around in place."""
    if nu == 0.5:
        return (-r).exp()
    a = (2 * nu) ** 0.5 * r
    return (1 + a if nu == 1.5 else 1 + a + a.square() / 3) * (-a).exp()
