"""A model that follows an experiment: conditioned on new rows, accumulated anew on changed ones, refitted by growth.

Ax makes a model of all its data at every trial, in the order of the trials and in units of their mean and standard
deviation at the time. What has come since the model before is found by the rows themselves.
"""

import logging
import warnings
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import Literal

import torch
from botorch.models.transforms.outcome import Standardize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.errors import InterpolationWarning
from bo_scale.loop.surrogate import best_fit, with_hyperparameters
from bo_scale.models.base import ScalableModel
from bo_scale.models.function_space import FunctionSpaceModel
from bo_scale.models.modules import clone_module
from bo_scale.models.rows import Rows
from bo_scale.models.weight_space import WeightSpaceModel

logger = logging.getLogger("bo_scale.ax")
GROWTH = 1.25
"""Refit when the observations have become this many times as many, as the loop does."""
TOLERANCE = 1e-9
"""Relative: how far targets may be from an affine change of what they were. Ax's arithmetic leaves about 1e-15."""
Event = Literal["refitted", "streamed", "accumulated"]


@dataclass(frozen=True)
class Stream:
    """How a model came to be, since its process started.

    Attributes:
        count: Observations it has seen.
        fitted: How many of them its hyperparameters have seen.
        refitted: Fits of hyperparameters.
        streamed: Times that new rows conditioned the model before, exactly.
        accumulated: Times that rows had been revised or removed, or came between earlier ones where that matters: all
            were taken in anew, at the same hyperparameters.
        chosen: Which model is at work, and why, where it was chosen automatically.
    """

    count: int = 0
    fitted: int = 0
    refitted: int = 0
    streamed: int = 0
    accumulated: int = 0
    chosen: str = ""

    def after(self, event: Event, count: int) -> "Stream":
        """What it is after one more step."""
        fitted = count if event == "refitted" else self.fitted
        return replace(self, count=count, fitted=fitted, **{event: getattr(self, event) + 1})


def follow(model: ScalableModel, before: ScalableModel | None, growth: float, chosen: str = "") -> None:
    """Make a model of data, not fitted yet, what follows from the model before, in place.

    It is fitted where there is none before, or one of another class, or the data have grown by the factor: from the
    hyperparameters there are and from the prior's, the better by evidence. Otherwise hyperparameters stay.

    Args:
        model: Of all data, fresh from its constructor.
        before: Of earlier data, or None. It stays as it is.
        growth: Refit when n has grown by this factor.
        chosen: For the record.
    """
    assert model._rows is not None, "Ax keeps all data"
    n = model._rows.count
    past = before.__dict__.get("_stream", Stream()) if type(before) is type(model) else Stream()
    streamed = None if past.count == 0 or before is None else conditioned(before, model)
    event: Event = "streamed"
    if before is None or past.count == 0 or n >= growth * past.fitted:
        event = "refitted"
        _refit(model, before if past.count else None, streamed)
    elif streamed is not None:
        _become(model, streamed)
    else:
        event = "accumulated"
        _take_over(model, before)
    model.__dict__["_stream"] = replace(past, chosen=chosen).after(event, n)
    model.eval()
    logger.info("%s: %s, n = %d. %s", type(model).__name__, event, n, chosen)


def stream_of(model: ScalableModel) -> Stream:
    """How a model came to be."""
    found: Stream = model.__dict__.get("_stream", Stream())
    return found


def conditioned(before: ScalableModel, model: ScalableModel) -> ScalableModel | None:
    """The model before, conditioned on the rows that it has not seen, in the other's order and units; None if it can't.

    Its own units stay what they were: when all targets have changed by one affine map, the outcome transform changes.
    Variances change with the square of its factor, or nothing is streamed.
    """
    old, new = before._rows, model._rows
    transforms = getattr(before, "outcome_transform", None), getattr(model, "outcome_transform", None)
    if old is None or new is None or any(type(each) is not Standardize for each in transforms):
        return None
    seen = positions(old.X, new.X)
    if seen is None or not _keeps_order(before, seen):
        return None
    X, Y, V = new.X, *_untransformed(model)
    units = units_of(old, Y[seen], V[seen] if _known_noise(model) else None)
    if units is None:
        return None
    means, stdvs = units
    unseen = torch.ones(new.count, dtype=torch.bool, device=seen.device)
    unseen[seen] = False
    child = before
    if bool(unseen.any()):
        with torch.no_grad():
            before.eval()
            before.posterior(X[:1])  # derived here and now: one more observation is then cheap
            D = V[unseen] / stdvs.square() if _known_noise(model) else torch.ones_like(Y[unseen])
            transformed = before._transform_new_inputs(X[unseen])
            child = before._streamed(X[unseen], transformed, (Y[unseen] - means) / stdvs, D.to(torch.float64))
    else:
        child = clone_module(before)
    _set_units(child, means, stdvs)
    order = torch.cat([seen, unseen.nonzero().squeeze(-1)]).argsort()
    if not torch.equal(order, torch.arange(len(order), device=order.device)):
        assert child._rows is not None
        _set_rows(child, Rows.of(child._rows.X[order], child._rows.Y[order], child._rows.D[order]))
    return child


def positions(old: Float[Tensor, "n d"], new: Float[Tensor, "r d"]) -> Int[Tensor, " n"] | None:
    """Where old rows are among new ones, equal ones in their order; None if some are not there."""
    n = len(old)
    if len(new) < n:
        return None
    if torch.equal(old, new[:n]):
        return torch.arange(n, device=new.device)
    places: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for place, row in enumerate(new.cpu().numpy()):
        places[row.tobytes()].append(place)
    found = []
    for row in old.cpu().numpy():
        equal = places[row.tobytes()]
        if not equal:
            return None
        found.append(equal.popleft())
    return torch.tensor(found, device=new.device)


def units_of(
    old: Rows, Y: Float[Tensor, "n m"], Yvar: Float[Tensor, "n m"] | None
) -> tuple[Float[Tensor, "1 m"], Float[Tensor, "1 m"]] | None:
    """Means and standard deviations with which old targets y are the values Y = mean + sd · y; None if none are.

    By least squares. Known variances must be sd² times what they were; two rows tell nothing.
    """
    if old.count < 3:
        return None
    y, D = old.Y, old.D
    center, middle = y.mean(0, keepdim=True), Y.mean(0, keepdim=True)
    spread = (y - center).square().sum(0, keepdim=True)
    varied = spread > old.count * torch.finfo(y.dtype).eps ** 2 * (1 + center.square())
    stdvs = ((y - center) * (Y - middle)).sum(0, keepdim=True) / spread.where(varied, torch.ones_like(spread))
    level = torch.ones_like(stdvs) if Yvar is None else (Yvar / D).mean(0, keepdim=True).sqrt()
    stdvs = stdvs.where(varied, level)
    means = middle - stdvs * center
    size = Y.abs().amax(0, keepdim=True) + stdvs
    near = bool(((means + stdvs * y - Y).abs() <= TOLERANCE * size).all()) and bool((stdvs > 0).all())
    if near and Yvar is not None:
        near = torch.allclose(D * stdvs.square(), Yvar, rtol=1e3 * TOLERANCE, atol=0.0)
    return (means, stdvs) if near else None


def _keeps_order(before: ScalableModel, seen: Int[Tensor, " n"]) -> bool:
    """Whether rows may come in this order: sums do not mind, ages and actions of rows do."""
    if isinstance(before, WeightSpaceModel) and before._decay == 1.0:
        return True
    return torch.equal(seen, torch.arange(len(seen), device=seen.device))


def _untransformed(model: ScalableModel) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
    """Targets, and D, in the units of the data."""
    assert model._rows is not None
    transform = model.outcome_transform
    assert isinstance(transform, Standardize)
    Y = transform.means + transform.stdvs * model._rows.Y
    return Y, transform.stdvs.square() * model._rows.D


def _known_noise(model: ScalableModel) -> bool:
    return isinstance(model.likelihood, FixedNoiseGaussianLikelihood)


def _set_units(model: ScalableModel, means: Float[Tensor, "1 m"], stdvs: Float[Tensor, "1 m"]) -> None:
    """Other units of what goes in and comes out; inside all stays as it is."""
    transform = model.outcome_transform
    assert isinstance(transform, Standardize)
    transform.means, transform.stdvs = means.to(transform.means), stdvs.to(transform.stdvs)
    transform._stdvs_sq = transform.stdvs.square()


def _set_rows(model: ScalableModel, rows: Rows) -> None:
    model._rows = rows
    if _known_noise(model):
        model.likelihood.noise_covar.rows = rows


def _become(model: ScalableModel, other: ScalableModel) -> None:
    """A module with all that another is made of."""
    object.__setattr__(model, "__dict__", other.__dict__)


def _take_over(model: ScalableModel, before: ScalableModel) -> None:
    """The hyperparameters, grids and points of the model before, with a model's own rows and units."""
    own = {k: v for k, v in model.state_dict().items() if k.startswith("outcome_transform.")}
    taken = {k: v for k, v in before.state_dict().items() if not k.startswith("outcome_transform.")}
    model.load_state_dict({**taken, **own})


def _refit(model: ScalableModel, before: ScalableModel | None, streamed: ScalableModel | None) -> None:
    """The better of two fits, one from the hyperparameters there are and one from the prior's."""
    starts = [model]
    if before is not None:
        if isinstance(model, FunctionSpaceModel) and streamed is not None:
            transform = model.outcome_transform
            assert isinstance(transform, Standardize)
            starts.append(streamed.restandardised(transform.means, transform.stdvs))
        else:
            warm = clone_module(model)
            with_hyperparameters(warm, dict(before.named_parameters()))
            starts.append(warm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)  # of two fits, one is not used
        best = best_fit(starts, model._rows.count if model._rows is not None else 0)
    if best is None and before is not None:
        _take_over(model, before)
    elif isinstance(best, ScalableModel) and best is not model:
        _become(model, best)
