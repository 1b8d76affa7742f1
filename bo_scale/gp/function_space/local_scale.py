"""Variances that errors of left-out rows near a point scale: where a process is surer, or less sure, than it thinks.

A stationary kernel and one noise variance say the same of all places. With errors z_i of rows left out, in units of
their standard deviations, variances near x are multiplied by the mean of squares nearby,

s(x) = (a + Σ_i w_i(x) z_i²) / (a + Σ_i w_i(x)),   w_i(x) = exp(−‖(x − x_i)/ℓ‖² / 2h²),

as if a rows with a square of one lay at every point. Away from all rows s is 1, and the process as it was. It is the
local likelihood estimate of s for z ~ N(0, s). The process is then f̃ = m + √s (f − m), m its mean, Gaussian as before.

R. Tibshirani, T. Hastie. Local likelihood estimation. Journal of the American Statistical Association 82, 1987.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.moving import Movable

NEIGHBOURS = (10, 20, 50, 100, 200)
"""Numbers of neighbours, the distance of the last of which is tried as h."""
PRIOR_ROWS = (5.0, 10.0, 20.0)
"""Values of a that are tried."""
LARGEST = 25.0
"""Largest square that counts: that of an error of five deviations."""
NAMES = ("points", "squares", "units", "prior")
GAIN = 5.0
"""Least gain of left-out log density, in nats of all rows, by which variances are scaled."""


@dataclass(frozen=True)
class LocalScale(Movable):
    """The factor s(x) of variances near x.

    Attributes:
        points: x_i/(ℓh).
        squares: z_i².
        units: ℓh.
        prior: a.
    """

    points: Float[Tensor, "n d"]
    squares: Float[Tensor, " n"]
    units: Float[Tensor, " d"]
    prior: Float[Tensor, ""]

    def __call__(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """Return s at points. O(n d) each, differentiable."""
        distances = torch.cdist((X / self.units).reshape(-1, X.shape[-1]), self.points)
        return self.mean(_weights(distances)).reshape(X.shape[:-1])

    def left_out(self, X: Float[Tensor, "k d"]) -> Float[Tensor, " k"]:
        """Return s at rows as rows elsewhere have it. O(k n) memory."""
        distances = torch.cdist(X / self.units, self.points, compute_mode="donot_use_mm_for_euclid_dist")
        return self.mean(_weights(distances) * (distances > 0))

    def mean(self, weights: Float[Tensor, "q n"]) -> Float[Tensor, " q"]:
        """Return s for weights of the rows."""
        return (self.prior + weights @ self.squares) / (self.prior + weights.sum(-1))

    def state(self) -> dict[str, Tensor]:
        """Return its tensors, for saving."""
        return {f"local_{name}": getattr(self, name).clone() for name in NAMES}

    @classmethod
    def restored(cls, saved: Mapping[str, Tensor]) -> "LocalScale | None":
        """Return it from tensors that were saved; None if there are none."""
        return cls(**{name: saved[f"local_{name}"] for name in NAMES}) if "local_points" in saved else None


@torch.no_grad()
def local_scale(
    X: Float[Tensor, "n d"], lengthscales: Float[Tensor, " l"], squares: Float[Tensor, " n"]
) -> LocalScale | None:
    """Return the factor of variances under which rows left out are the most likely; None if one is as good. O(n²).

    Args:
        X: Inputs.
        lengthscales: ℓ, one for each input or for all.
        squares: Squared errors of rows left out, in units of their variances.
    """
    units, found, best = lengthscales.expand(X.shape[-1]), None, GAIN
    squares = squares.clamp_max(LARGEST)
    distances = torch.cdist(X / units, X / units)
    for count in (count for count in NEIGHBOURS if 2 * count < len(X)):
        h = distances.kthvalue(count + 1, dim=-1).values.median()
        if h == 0:  # of rows with as many twins
            continue
        weights = _weights(distances / h)
        weights.fill_diagonal_(0.0)
        for a in PRIOR_ROWS:
            tried = LocalScale(X / (units * h), squares, units * h, squares.new_tensor(a))
            gain = _gain(squares, tried.mean(weights))
            if gain > best:
                found, best = tried, gain
    return found


def _weights(distances: Tensor) -> Tensor:
    return torch.exp(-0.5 * distances.square())


def _gain(squares: Float[Tensor, " n"], scale: Float[Tensor, " n"]) -> float:
    """Return by how much the log density of errors rises with scaled variances."""
    return 0.5 * (squares - squares / scale - scale.log()).sum().item()
