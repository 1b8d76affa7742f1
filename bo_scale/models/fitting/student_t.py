"""Weights of rows under Student-t noise."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from botorch import settings
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.student_t import DEGREES, best_degrees, bound_gain, expected_precision, weights_of_new_rows
from bo_scale.models.errors import FitError, UnsupportedError
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.shell.student_t import StudentTNoise

ROWS = 500
"""Maximum number of rows of the exact GP that finds the weights."""
TRIAL, HEAVY, ROUNDS = 3, 6, 10
"""Number of times that weights are found from each start, with tails as heavy as can be, and in all."""
STEPS = 10
"""Maximum number of iterations by which hyperparameters follow the weights."""
SMALL = 0.01
"""Initial noise variance of the second start, relative to the first."""
CHUNK = 4096
"""Number of rows that are predicted at once."""


@contextmanager
def weighed_rows(model: Any, seed: int = 0) -> Iterator[None]:
    """Give each row a weight for a fit, and anew after it, if a model has Student-t noise. In place.

    Before the fit, the weights are those of an exact GP of at most `ROWS` rows, which finds them and hyperparameters in
    turn. After it, they follow from the model's own posterior.

    Raises:
        UnsupportedError: if the model keeps no rows.
        FitError: if the exact GP cannot be fitted.
    """
    if not isinstance(model.likelihood, StudentTNoise):
        yield
        return
    rows = model.rows
    if rows is None:
        raise UnsupportedError("likelihood: StudentTNoise needs a model that keeps its rows. Use keep_data=True.")
    try:
        _weigh(model, *_weights_by_exact(model, seed))
        yield
    except BaseException:
        model.set_noise_ratios(rows.D)
        raise
    _weigh(model, *_weights_by_posterior(model))


def fit_student_t(exact: ExactGP, given: dict[str, Any]) -> tuple[ExactGP, list[float], float]:
    """Fit an exact GP with Student-t noise: weights and hyperparameters in turn.

    There are three starts, since a fit by Gaussian noise explains outliers by a large noise variance or by short
    lengthscales: that fit, the same with little noise, and the present hyperparameters.

    Args:
        exact: An exact GP whose modules are fitted, in place.
        given: Options of the optimiser.

    Returns:
        The exact GP with the relative noise variances of rows, degrees of freedom of each output, and the bound of the
        log evidence, with log priors, for each row.
    """
    present, likelihood = exact.state(), exact.modules.likelihood
    exact.fit_from_best_start(given)
    gaussian = exact.state()
    ends, errors = [], []
    for start, factor in ((gaussian, 1.0), (gaussian, SMALL), (present, 1.0)):
        exact.modules.load_state_dict(start)
        floor = likelihood.noise_covar.raw_noise_constraint.lower_bound
        likelihood.noise = (factor * likelihood.noise.detach()).clamp_min(2 * float(floor))
        try:
            tried, _, bound = _alternated(exact, given, range(TRIAL))
            ends.append((bound, tried, exact.state()))
        except FitError as error:
            errors.append(error)
    if not ends:
        raise errors[-1]
    _, tried, state = max(ends, key=lambda end: end[0])
    exact.modules.load_state_dict(state)
    return _alternated(tried, given, range(TRIAL, ROUNDS))


def _alternated(exact: ExactGP, given: dict[str, Any], rounds: range) -> tuple[ExactGP, list[float], float]:
    """Find weights and hyperparameters in turn; return the exact GP, degrees of freedom, and the bound for each row."""
    degrees, gain = [DEGREES[0]] * exact.Y.shape[-1], 0.0
    few = {**given, "options": {"maxiter": STEPS, **given.get("options", {})}}
    for round_ in rounds:
        squares = exact.squared_residuals()
        if round_ >= HEAVY:
            degrees = [best_degrees(column) for column in squares.unbind(-1)]
        exact = replace(exact, D=1 / expected_precision(squares, torch.tensor(degrees).to(squares)))
        columns = zip(squares.unbind(-1), degrees, strict=True)
        gain = sum(bound_gain(column, nu).mean().item() for column, nu in columns)
        exact.fit(slice(None), few)
    return exact, degrees, exact.value_at(exact.state()) + gain


def _weigh(model: Any, D: Tensor, degrees: list[float]) -> None:
    noise = model.likelihood.degrees_of_freedom
    noise.data.copy_(torch.tensor(degrees).to(noise).reshape(noise.shape))
    model.set_noise_ratios(D)


def _weights_by_exact(model: Any, seed: int) -> tuple[Float[Tensor, "n m"], list[float]]:
    X, Y, D = model._transformed_rows()
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed)).to(X.device)
    seen, unseen = order[:ROWS], order[ROWS:]
    with settings.validate_input_scaling(False):
        exact = ExactGP.like(model, X[seen], Y[seen], torch.ones_like(D[seen]))
        exact, degrees, _ = fit_student_t(exact, {})
    found = torch.ones_like(D)
    found[seen] = exact.D
    scale = exact.noise_scale()
    for part in unseen.split(CHUNK):
        errors, variances = exact.predicted(X[part], Y[part])
        for j, nu in enumerate(degrees):
            found[part, j] = 1 / weights_of_new_rows(errors[:, j], variances[:, j], scale[j].item(), nu)
    return found, degrees


def _weights_by_posterior(model: Any) -> tuple[Float[Tensor, "n m"], list[float]]:
    X, Y, _ = model._transformed_rows()
    scale, squares = model.learned_noise, torch.empty_like(Y)
    with torch.no_grad():
        for j, process in enumerate(model.processes):
            for part in torch.arange(len(X), device=X.device).split(CHUNK):
                located = process.locate(X[part])
                squares[part, j] = ((Y[part, j] - located.mean).square() + located.variance()) / scale[j]
    degrees = [best_degrees(column) for column in squares.unbind(-1)]
    return 1 / expected_precision(squares, torch.tensor(degrees).to(squares)), degrees
