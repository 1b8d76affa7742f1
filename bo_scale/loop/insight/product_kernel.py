"""Sobol' indices of an exact GP with a product kernel, in closed form.

Its posterior mean is μ + Σ_i α_i Π_g k_g(x_g, x_ig) over the parameters g. With e_g and G_g the means over x_g of k_g
and of k_g k_gᵀ, the variance of the mean is αᵀ(Π G_g − Π e_g e_gᵀ)α, what g explains alone
αᵀ(G_g Π_{h≠g} e_h e_hᵀ − Π e_h e_hᵀ)α, and what is left without it αᵀ(Π G_h − e_g e_gᵀ Π_{h≠g} G_h)α.

J. Oakley, A. O'Hagan. Probabilistic sensitivity analysis of complex models: a Bayesian approach. Journal of the Royal
Statistical Society B 66, 2004: section 3.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.acquisition import posterior_means
from bo_scale.errors import UnsupportedKernelError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.left_out import gaussian_rows
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.kernels import AxisKernels
from bo_scale.models.shell.weight_space import WeightSpaceModel

ROWS = 2000
"""Largest number of rows: two n × n matrices for each parameter."""
NODES = 128
"""Gauss-Legendre nodes of an interval, and the most values of a discrete parameter."""
CHECKED = 64
"""Points at which the product form must be the model's mean."""


@dataclass(frozen=True)
class Places:
    """The inputs of a parameter.

    Attributes:
        columns: Their columns in the unit cube.
        values: The parameter's values there, all equally likely; None for an interval.
    """

    columns: tuple[int, ...]
    values: Float[Tensor, "v i"] | None

    def nodes(self) -> tuple[Float[Tensor, "v i"], Float[Tensor, " v"]]:
        """Return nodes of a quadrature over the parameter, and their weights."""
        if self.values is not None:
            return self.values, torch.full((len(self.values),), 1 / max(1, len(self.values)), dtype=torch.float64)
        places, weights = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(NODES))
        return (0.5 * (places + 1)).unsqueeze(-1), 0.5 * weights


@torch.no_grad()
def closed_form(model: Any, parameters: list[Places]) -> Float[Tensor, "2 k"] | None:
    """Return first and total indices of each parameter; None for models that have no closed form, or too many rows.

    Args:
        model: A model of one output.
        parameters: The inputs of each parameter.
    """
    expansion = _expansion(model, sum(len(each.columns) for each in parameters))
    if expansion is None or any(each.values is not None and len(each.values) > NODES for each in parameters):
        return None
    kernel, X, alpha = expansion
    ones = torch.ones(len(X), dtype=torch.float64)
    e, G = [], []
    for each in parameters:
        nodes, weights = each.nodes()
        k = _factor(kernel, X, each.columns, nodes) if each.columns else ones.unsqueeze(-1)
        weights = weights if each.columns else torch.ones(1, dtype=torch.float64)
        e.append(k @ weights)
        G.append((k * weights) @ k.mT)
    return _indices(alpha, e, G)


def _indices(
    alpha: Float[Tensor, " n"], e: list[Float[Tensor, " n"]], G: list[Float[Tensor, "n n"]]
) -> Float[Tensor, "2 k"]:
    k, mean = len(e), float(alpha @ torch.stack(e).prod(0))
    every = torch.stack(G).prod(0)
    square = float(alpha @ every @ alpha)
    variance = square - mean**2
    if variance <= 1e-12 * square:
        return torch.zeros(2, k, dtype=torch.float64)
    found = torch.zeros(2, k, dtype=torch.float64)
    for g in range(k):
        others = alpha * torch.stack([e[h] for h in range(k) if h != g] or [torch.ones_like(alpha)]).prod(0)
        rest = torch.stack([G[h] for h in range(k) if h != g] or [torch.ones_like(every)]).prod(0)
        known = alpha * e[g]
        found[0, g] = (float(others @ G[g] @ others) - mean**2) / variance
        found[1, g] = (square - float(known @ rest @ known)) / variance
    return found


def _factor(
    kernel: AxisKernels, X: Float[Tensor, "n d"], columns: tuple[int, ...], nodes: Float[Tensor, "v i"]
) -> Float[Tensor, "n v"]:
    """Return k_g of rows with the values of a parameter: the product over its inputs."""
    whole = torch.zeros(X.shape[-1], len(nodes), dtype=torch.float64)
    whole[list(columns)] = nodes.mT
    return kernel(X, whole)[:, list(columns)].prod(1)


def _expansion(model: Any, d: int) -> tuple[AxisKernels, Float[Tensor, "n d"], Float[Tensor, " n"]] | None:
    """Return kernel, rows and weights α if Σ_i α_i Π_l κ_l(x_l, x_il) is the model's mean but for a constant."""
    rows, X = getattr(model, "rows", None), None
    if isinstance(model, WeightSpaceModel) or hasattr(model, "input_transform"):
        return None
    inputs = rows.X if rows is not None else getattr(model, "train_inputs", [None])[0]
    if inputs is None or len(inputs) > ROWS or inputs.ndim != 2:
        return None
    try:
        kernel, gaussian = AxisKernels(model.covar_module), gaussian_rows(model)
    except (UnsupportedKernelError, UnsupportedError):
        return None
    X, u = inputs.double().cpu(), gaussian.precision.times(gaussian.residual).cpu()
    kernel = AxisKernels(clone_module(model.covar_module).cpu())
    alpha = gaussian.scale * float(kernel.outputscale) * u
    points = torch.rand(CHECKED, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    said = posterior_means(model, points.to(inputs.device)).squeeze(-1).double().cpu()
    ours = torch.stack([kernel(X, point.unsqueeze(-1)).prod(-2).squeeze(-1) @ alpha for point in points])
    off = said - ours
    same = bool((off - off.mean()).abs().max() <= 1e-6 * said.std() + 1e-12 * said.abs().max())
    return (kernel, X, alpha) if same else None
