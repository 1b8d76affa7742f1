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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bo_scale.errors import InterpolationWarning
from bo_scale.models.errors import FitError
from bo_scale.models.refit import best_fit, with_hyperparameters
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows
from bo_scale.models.shell.weight_space import WeightSpaceModel

logger = logging.getLogger("bo_scale.ax")
GROWTH = 1.25
"""Refit when the observations have become this many times as many, as the loop does."""
TOLERANCE = 1e-9
"""Of the model's own unit: how far targets may be from an affine change of what they were."""
Event = Literal["refitted", "streamed", "accumulated"]


@dataclass(frozen=True)
class Stream:
    """How a model came to be, since its process started.

    Attributes:
        count: Observations it has seen.
        fitted: How many of them its hyperparameters have seen.
        changed: How many were revised or removed since these were fitted.
        refitted: Fits of hyperparameters.
        streamed: Times that new rows conditioned the model before, exactly.
        accumulated: Times that rows had been revised or removed, or came between earlier ones where that matters: all
            were taken in anew, at the same hyperparameters.
        chosen: Which model is at work, and why, where it was chosen automatically.
    """

    count: int = 0
    fitted: int = 0
    changed: int = 0
    refitted: int = 0
    streamed: int = 0
    accumulated: int = 0
    chosen: str = ""

    def after(self, event: Event, count: int, changed: int) -> "Stream":
        """What it is after one more step."""
        fitted, changed = (count, 0) if event == "refitted" else (self.fitted, self.changed + changed)
        return replace(self, count=count, fitted=fitted, changed=changed, **{event: getattr(self, event) + 1})


def follow(model: ScalableModel, before: ScalableModel | None, growth: float, chosen: str = "") -> None:
    """Make a model of data, not fitted yet, what follows from the model before, in place.

    It is fitted where there is none before, or one of another kind, or as many rows are new or changed as make the
    data grow by the factor: from the hyperparameters there are and from the prior's, the better by evidence. Otherwise
    hyperparameters stay.

    Args:
        model: Of all data, fresh from its constructor.
        before: Of earlier data, or None. It stays as it is.
        growth: Refit when n has grown by this factor.
        chosen: For the record.
    """
    assert model._rows is not None, "Ax keeps all data"
    n = model._rows.count
    if before is not None and not _same_kind(before, model):
        before = None
    past, changed, streamed = Stream(), 0, None
    if before is not None:
        past = stream_of(before)
        step = compare(before, model)
        changed, streamed = step.changed, conditioned(before, model, step)
    event: Event = "streamed"
    if before is None or due(past, n + changed, growth):
        event = "refitted" if _refit(model, before, streamed) else "accumulated"
    elif streamed is not None:
        _become(model, streamed)
    else:
        event = "accumulated"
        _take_over(model, before)
    model.__dict__["_stream"] = replace(past, chosen=chosen).after(event, n, changed)
    model.eval()
    logger.info("%s: %s, n = %d. %s", type(model).__name__, event, n, chosen)


def due(past: Stream, count: int, growth: float) -> bool:
    """Whether new and changed rows together make for a fit."""
    return count + past.changed >= growth * past.fitted


def stream_of(model: ScalableModel) -> Stream:
    """How a model came to be."""
    found: Stream = model.__dict__.get("_stream", Stream())
    return found


def _same_kind(before: ScalableModel, model: ScalableModel) -> bool:
    """Whether hyperparameters of one are those of the other, and rows and units can be compared."""
    transforms = getattr(before, "outcome_transform", None), getattr(model, "outcome_transform", None)
    return (
        type(before) is type(model)
        and before._rows is not None
        and _known_noise(before) == _known_noise(model)
        and all(type(each) is Standardize for each in transforms)
    )


@dataclass(frozen=True)
class Step:
    """From the rows of one model to those of the next.

    Attributes:
        places: Where old rows are among the new ones; −1 where they are not.
        units: Means and standard deviations that make old targets values of now, where they do for all of them.
        changed: How many old rows are not there, or have other targets.
    """

    places: Int[Tensor, " n"]
    units: tuple[Float[Tensor, "1 m"], Float[Tensor, "1 m"]] | None
    changed: int


def compare(before: ScalableModel, model: ScalableModel) -> Step:
    """What has become of the rows of the model before."""
    old, new = before._rows, model._rows
    assert old is not None
    assert new is not None
    places = positions(old.X, new.X)
    kept = places >= 0
    Y, V = _untransformed(model)
    known = _known_noise(model)
    rows = old if bool(kept.all()) else Rows.of(old.X[kept], old.Y[kept], old.D[kept])
    units, moved = units_of(rows, Y[places[kept]], V[places[kept]] if known else None)
    return Step(places, units, old.count - rows.count + moved)


def conditioned(before: ScalableModel, model: ScalableModel, step: Step) -> ScalableModel | None:
    """The model before, conditioned on the rows that it has not seen, in the other's order and units; None if it can't.

    Its own units stay what they were: when all targets have changed by one affine map, the outcome transform changes.
    Variances change with the square of its factor, or nothing is streamed.
    """
    new = model._rows
    if step.changed or step.units is None or new is None or not _keeps_order(before, step.places):
        return None
    X, (Y, V), (means, stdvs) = new.X, _untransformed(model), step.units
    unseen = torch.ones(new.count, dtype=torch.bool, device=X.device)
    unseen[step.places] = False
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
    order = torch.cat([step.places, unseen.nonzero().squeeze(-1)]).argsort()
    if not torch.equal(order, torch.arange(len(order), device=order.device)):
        assert child._rows is not None
        _set_rows(child, Rows.of(child._rows.X[order], child._rows.Y[order], child._rows.D[order]))
    return child


def positions(old: Float[Tensor, "n d"], new: Float[Tensor, "r d"]) -> Int[Tensor, " n"]:
    """Where old rows are among new ones, equal ones in their order; −1 for those that are not there."""
    n = len(old)
    if len(new) >= n and torch.equal(old, new[:n]):
        return torch.arange(n, device=new.device)
    places: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for place, row in enumerate(new.cpu().numpy()):
        places[row.tobytes()].append(place)
    equal = (places[row.tobytes()] for row in old.cpu().numpy())
    return torch.tensor([found.popleft() if found else -1 for found in equal], device=new.device)


def units_of(
    old: Rows, Y: Float[Tensor, "n m"], Yvar: Float[Tensor, "n m"] | None
) -> tuple[tuple[Float[Tensor, "1 m"], Float[Tensor, "1 m"]] | None, int]:
    """Means and standard deviations with which old targets y are the values Y = mean + sd · y; how many are not.

    By medians of differences between neighbours, which some rows with other targets do not move; then, where all rows
    agree, by least squares. Known variances must be sd² times what they were; two rows tell nothing.
    """
    if old.count < 3:
        return None, 0
    y, D = old.Y, old.D
    rises = y.diff(dim=0)
    varied = rises.abs() > 1e-12 * (1 + y.abs().amax(0))
    slopes = (Y.diff(dim=0) / rises).where(varied, torch.nan).nanmedian(0, keepdim=True).values
    level = torch.ones_like(slopes) if Yvar is None else (Yvar / D).median(0, keepdim=True).values.sqrt()
    stdvs = slopes.where(varied.any(0, keepdim=True), level)
    means = (Y - stdvs * y).median(0, keepdim=True).values
    moved = ~_agree(means + stdvs * y, Y, stdvs)
    if Yvar is not None:
        moved |= ~torch.isclose(D * stdvs.square(), Yvar, rtol=1e3 * TOLERANCE, atol=0.0)
    count = int(moved.any(-1).sum())
    if count or not bool((stdvs > 0).all()):
        return None, count
    center, middle = y.mean(0, keepdim=True), Y.mean(0, keepdim=True)
    square = (y - center).square().sum(0, keepdim=True)
    product = ((y - center) * (Y - middle)).sum(0, keepdim=True)
    stdvs = (product / square).where(varied.any(0, keepdim=True), level)
    return (middle - stdvs * center, stdvs), 0


def _agree(a: Float[Tensor, "n m"], b: Float[Tensor, "n m"], unit: Float[Tensor, "1 m"]) -> Bool[Tensor, "n m"]:
    """Equal as far as the model can tell, and as far as rounding lets it."""
    return (a - b).abs() <= TOLERANCE * unit.abs() + 1e-13 * b.abs().amax(0, keepdim=True)


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


def _refit(model: ScalableModel, before: ScalableModel | None, streamed: ScalableModel | None) -> bool:
    """The better of two fits, one from the hyperparameters there are and one from the prior's; False if both failed."""
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
    if best is None and before is None:
        raise FitError(f"{type(model).__name__}: its first fit failed; the warning before says why.")
    if best is None and before is not None:
        _take_over(model, before)
    elif isinstance(best, ScalableModel) and best is not model:
        _become(model, best)
    return best is not None
