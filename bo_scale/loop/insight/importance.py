"""Importance of parameters: Sobol' indices of the posterior mean, its variance shared out among parameters."""

from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.model import Model
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine
from typing_extensions import override

from bo_scale.decisions.acquisition import posterior_means
from bo_scale.errors import SpaceError
from bo_scale.loop.insight.leave_one_out import parts_of
from bo_scale.loop.insight.product_kernel import Places, closed_form
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.parameters import Parameter, When
from bo_scale.loop.problem.space import Space

REPLICATES = 8
"""Independent scramblings of the quasi-random points, whose spread gives standard errors."""
Name = str | int
"""The name of a parameter, or its number in a space without names."""


@dataclass(frozen=True, eq=False)
class Importance:
    """Sobol' indices of one outcome's posterior mean. Parameters without influence have 0.

    Attributes:
        outcome: The outcome's name; None if there are no names.
        first: Share of the variance that each parameter explains by itself.
        total: Share that is left unexplained if all parameters but this one are known: interactions included.
        first_errors: Standard errors of `first`; 0 if it was computed in closed form.
        total_errors: Standard errors of `total`.
    """

    outcome: str | None
    first: dict[Name, float]
    total: dict[Name, float]
    first_errors: dict[Name, float]
    total_errors: dict[Name, float]

    @override
    def __str__(self) -> str:
        """Return a table with the most important parameter first."""
        width = max(9, *(len(str(name)) + 2 for name in self.first))
        lines = [f"{'parameter':<{width}}{'alone':>16}{'in all':>16}"]
        for name in sorted(self.total, key=lambda each: -self.total[each]):
            alone = f"{self.first[name]:.3f} ± {self.first_errors[name]:.3f}"
            whole = f"{self.total[name]:.3f} ± {self.total_errors[name]:.3f}"
            lines.append(f"{name!s:<{width}}{alone:>16}{whole:>16}")
        return "\n".join(lines if self.outcome is None else [f"Importance for {self.outcome}", *lines])


class Importances(list[Importance]):
    """Importance for each outcome; printed, the tables of all."""

    @override
    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def importance(
    space: Space, outcomes: Outcomes, model: Model, *, samples: int = 1024, seed: int = 0, closed: bool = True
) -> Importances:
    """Return the Sobol' indices of every parameter for every outcome, over the whole space.

    Every admissible value counts the same: numbers on a logarithmic scale by their logarithm, integers and choices one
    by one. In closed form for an exact GP with a product kernel (RBF and products of Matérn) and up to 2000 rows, in
    O(n² k). For other models by 8 (k + 2) `samples` evaluations of the posterior mean, with standard errors.

    I. M. Sobol'. Global sensitivity indices for nonlinear mathematical models and their Monte Carlo estimates.
    Mathematics and Computers in Simulation 55, 2001. M. J. W. Jansen. Analysis of variance designs for model output.
    Computer Physics Communications 117, 1999.

    Args:
        space: The space.
        outcomes: The outcomes.
        model: The model of all observations.
        samples: Number of quasi-random points in each of 8 replicates; a power of two is best.
        seed: Seed of the points.
        closed: Whether to use the closed form where there is one.

    Raises:
        SpaceError: for a space with linear constraints or conditional parameters, which depend on each other.
    """
    if space.conditions:
        conditional = [name for name, each in zip(space.labels, space.parameters) if isinstance(each, When)]
        raise SpaceError(
            f"importance: {conditional} exist only where others have certain values, and shares of variance are then "
            f"not defined. Compare predict(…) at points that differ in one parameter."
        )
    if space.constraints:
        raise SpaceError(
            "parameter_constraints: they make parameters depend on each other, and shares of variance are then not "
            "defined. Pass a space without them, Space(space.parameters, space.names), for shares over the whole box."
        )
    names: list[Name] = [*space.names] if space.names is not None else [*range(len(space.parameters))]
    labels = outcomes.names or (None,)
    return Importances(
        _importance(label, names, space.parameters, part, samples, seed, closed)
        for label, part in zip(labels, parts_of(model), strict=True)
    )


def _importance(
    outcome: str | None,
    names: list[Name],
    parameters: tuple[Parameter, ...],
    model: Any,
    samples: int,
    seed: int,
    closed: bool,
) -> Importance:
    indices = closed_form(model, _places(parameters)) if closed else None
    errors = torch.zeros(2, len(names))
    if indices is None:
        each = torch.stack([_sampled(parameters, model, samples, seed + r) for r in range(REPLICATES)])
        indices, errors = each.mean(0), each.std(0) / REPLICATES**0.5
    rows = [dict(zip(names, row, strict=True)) for row in [*indices.tolist(), *errors.tolist()]]
    return Importance(outcome, *rows)


def _sampled(parameters: tuple[Parameter, ...], model: Any, samples: int, seed: int) -> Float[Tensor, "2 k"]:
    """Return first and total indices, E[f_B (f_AB − f_A)] and ½E[(f_A − f_AB)²] in shares of the variance.

    AB has all parameters of A but one, which is that of B.

    A. Saltelli et al. Variance based sensitivity analysis of model output. Computer Physics Communications 181, 2010:
    table 2, (b) and (f).
    """
    k, device = len(parameters), next(model.parameters()).device
    shares = SobolEngine(2 * k, scramble=True, seed=seed).draw(samples, dtype=torch.float64)
    A, B = shares[:, :k], shares[:, k:]
    mixed = [torch.cat([A[:, :i], B[:, i : i + 1], A[:, i + 1 :]], -1) for i in range(k)]
    every = torch.cat([A, B, *mixed])
    unit = torch.cat([_unit(each, share) for each, share in zip(parameters, every.unbind(-1))], -1)
    f = posterior_means(model, unit.to(device)).squeeze(-1).double().cpu().reshape(k + 2, samples)
    both = f[:2]
    f, variance = f - both.mean(), both.var(unbiased=False)
    if float(variance) <= (1e-12 * float(both.abs().max())) ** 2:
        return torch.zeros(2, k, dtype=torch.float64)
    first = (f[1] * (f[2:] - f[0])).mean(-1) / variance
    return torch.stack([first, 0.5 * (f[0] - f[2:]).square().mean(-1) / variance])


def _unit(parameter: Parameter, share: Float[Tensor, " n"]) -> Float[Tensor, "n i"]:
    """Return the inputs of a parameter at shares of its values."""
    if parameter.inputs == 0:
        return share.new_empty(len(share), 0)
    if parameter.lattice is not None:
        count = parameter.lattice.count
        return parameter.lattice.position((share * count).long().clamp(0, count - 1)).unsqueeze(-1)
    if parameter.inputs == 1:
        return share.unsqueeze(-1)
    index = (share * parameter.inputs).long().clamp(0, parameter.inputs - 1)
    return torch.nn.functional.one_hot(index, parameter.inputs).double()


def _places(parameters: tuple[Parameter, ...]) -> list[Places]:
    """Return the columns of each parameter and its values there; None for an interval."""
    found, start = [], 0
    for each in parameters:
        values = None
        if each.lattice is not None:
            values = each.lattice.position(torch.arange(each.lattice.count)).unsqueeze(-1)
        elif each.inputs != 1:
            values = torch.eye(each.inputs, dtype=torch.float64)
        found.append(Places(tuple(range(start, start + each.inputs)), values))
        start += each.inputs
    return found
