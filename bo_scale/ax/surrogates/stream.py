"""A model that follows an experiment: conditioned on new rows, refitted by growth and when rows have changed.

Ax makes a model of all its data at every trial, in the order of the trials and in units of their mean and standard
deviation at the time. What has come since the model before is found by the rows themselves.
"""

import logging
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from botorch.models.transforms.outcome import Standardize
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bo_scale.models.errors import FitError
from bo_scale.models.refit import Refit, with_hyperparameters
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows
from bo_scale.models.shell.weight_space import WeightSpaceModel

logger = logging.getLogger("bo_scale.ax")
TOLERANCE = 1e-9
"""Largest distance of targets from an affine change of the earlier ones, in the model's own unit."""
Update = Literal["refitted", "streamed", "accumulated"]


@dataclass(frozen=True)
class Stream:
    """The updates of a model, counted since the process started.

    Attributes:
        count: Number of observations in the model.
        fitted: Number of observations at the last fit of the hyperparameters.
        changed: Number of observations revised or removed since that fit.
        refitted: Number of fits of the hyperparameters.
        streamed: Number of exact updates: new rows conditioned the previous model.
        accumulated: Number of rebuilds from all rows at the same hyperparameters. A model is rebuilt if a trial
            reports another step of its curve, or if new rows come before old ones and their order matters.
        chosen: The model that "auto" chose, and the reason; otherwise empty.
        model: Name of the model's class.
    """

    count: int = 0
    fitted: int = 0
    changed: int = 0
    refitted: int = 0
    streamed: int = 0
    accumulated: int = 0
    chosen: str = ""
    model: str = field(default="", compare=False)

    def after(self, update: Update, count: int, changed: int) -> "Stream":
        """Return the history after one more update."""
        fitted, changed = (count, 0) if update == "refitted" else (self.fitted, self.changed + changed)
        return replace(self, count=count, fitted=fitted, changed=changed, **{update: getattr(self, update) + 1})


def follow(
    model: ScalableModel, before: ScalableModel | None, refit: Refit, chosen: str = "", curves: bool = False
) -> None:
    """Update a fresh model, in place, from the model before: conditioned, accumulated anew, or fitted.

    It is fitted where there is none before, or one of another kind, or rows were revised or removed, or as many are new
    as make the data grow by the factor: from the hyperparameters there are and from the prior's, the better by
    evidence. Otherwise hyperparameters stay.

    Args:
        model: Of all data, fresh from its constructor.
        before: Of earlier data, or None. It stays as it is.
        refit: When to fit again.
        chosen: For the record.
        curves: Whether rows are steps of curves. Trials that report again change them: that counts as growth.
    """
    assert model.rows is not None, "Ax keeps all data"
    n = model.rows.count
    if before is not None and not _same_kind(before, model):
        before = None
    past, changed, streamed = Stream(), 0, None
    if before is not None:
        past = stream_of(before)
        comparison = compare(before, model)
        changed, streamed = comparison.changed, conditioned(before, model, comparison)
    update: Update = "streamed"
    if before is None or due(past, n, changed, refit, curves):
        update = "refitted" if _fitted(model, before, streamed, refit) else "accumulated"
    elif streamed is not None:
        _become(model, streamed)
    else:
        update = "accumulated"
        _take_over(model, before)
    model.__dict__["_stream"] = replace(past, chosen=chosen, model=type(model).__name__).after(update, n, changed)
    model.eval()
    logger.info("%s: %s, n = %d. %s", type(model).__name__, update, n, chosen)


def due(past: Stream, count: int, changed: int, refit: Refit, curves: bool) -> bool:
    """Return whether changed rows make for a fit, or, if rows are steps of curves, new and changed ones together."""
    changed += past.changed
    return (changed > 0 and not curves) or refit.due(count + changed, past.fitted)


def stream_of(model: ScalableModel) -> Stream:
    """Return the history of a model."""
    found: Stream = model.__dict__.get("_stream", Stream())
    return found


def _same_kind(before: ScalableModel, model: ScalableModel) -> bool:
    """Return whether two models share their hyperparameters' meaning, and their rows and units can be compared."""
    transforms = getattr(before, "outcome_transform", None), getattr(model, "outcome_transform", None)
    return (
        type(before) is type(model)
        and before.rows is not None
        and before.knows_noise == model.knows_noise
        and all(type(each) is Standardize for each in transforms)
    )


@dataclass(frozen=True)
class Comparison:
    """The difference between the rows of one model and those of the next.

    Attributes:
        places: Where old rows are among the new ones; −1 where they are not.
        units: Means and standard deviations that make old targets values of now, where they do for all of them.
        changed: How many old rows are not there, or have other targets.
    """

    places: Int[Tensor, " n"]
    units: tuple[Float[Tensor, "1 m"], Float[Tensor, "1 m"]] | None
    changed: int


def compare(before: ScalableModel, model: ScalableModel) -> Comparison:
    """Compare the rows of the model before with those of the new one."""
    assert before.rows is not None
    assert model.rows is not None
    Y, V = _untransformed(model)
    return compare_rows(before.rows, model.rows.X, Y, V if model.knows_noise else None)


def compare_rows(
    old: Rows, X: Float[Tensor, "r d"], Y: Float[Tensor, "r m"], Yvar: Float[Tensor, "r m"] | None
) -> Comparison:
    """Compare old rows, in units of their own, with new data."""
    places = positions(old.X, X)
    kept = places >= 0
    rows = old if bool(kept.all()) else Rows.of(old.X[kept], old.Y[kept], old.D[kept])
    units, moved = units_of(rows, Y[places[kept]], None if Yvar is None else Yvar[places[kept]])
    return Comparison(places, units, old.count - rows.count + moved)


def conditioned(before: ScalableModel, model: ScalableModel, comparison: Comparison) -> ScalableModel | None:
    """Condition the model before on new rows, in the new model's order and units; None where that is not exact.

    Its own units stay what they were: when all targets have changed by one affine map, the outcome transform changes.
    Variances change with the square of its factor, or nothing is streamed.
    """
    new = model.rows
    if comparison.changed or comparison.units is None or new is None or not _keeps_order(before, comparison.places):
        return None
    X, (Y, V), (means, stdvs) = new.X, _untransformed(model), comparison.units
    unseen = torch.ones(new.count, dtype=torch.bool, device=X.device)
    unseen[comparison.places] = False
    if bool(unseen.any()):
        with torch.no_grad():
            before.eval()
            before.posterior(X[:1])  # derived here and now: one more observation is then cheap
            D = V[unseen] / stdvs.square() if model.knows_noise else torch.ones_like(Y[unseen])
            child = before.with_rows(X[unseen], (Y[unseen] - means) / stdvs, D.to(torch.float64))
    else:
        child = clone_module(before)
    _set_units(child, means, stdvs)
    order = torch.cat([comparison.places, unseen.nonzero().squeeze(-1)]).argsort()
    if not torch.equal(order, torch.arange(len(order), device=order.device)):
        assert isinstance(child, WeightSpaceModel), "models whose rows may come in any order"
        child.reorder_rows(order)
    return child


def positions(old: Float[Tensor, "n d"], new: Float[Tensor, "r d"]) -> Int[Tensor, " n"]:
    """Find old rows among new ones, equal rows in their order; −1 for rows that are gone."""
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
    """Find the units in which old targets y are the values Y = mean + sd · y, and how many rows do not agree.

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
    """Compare values up to the model's resolution and rounding."""
    return (a - b).abs() <= TOLERANCE * unit.abs() + 1e-13 * b.abs().amax(0, keepdim=True)


def _keeps_order(before: ScalableModel, seen: Int[Tensor, " n"]) -> bool:
    """Return whether rows may come in this order: sums do not depend on it, ages and actions do."""
    if isinstance(before, WeightSpaceModel) and not before.forgetting.forgets:
        return True
    return torch.equal(seen, torch.arange(len(seen), device=seen.device))


def _untransformed(model: ScalableModel) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
    """Return targets and variances D in the units of the data."""
    assert model.rows is not None
    transform = model.outcome_transform
    assert isinstance(transform, Standardize)
    Y = transform.means + transform.stdvs * model.rows.Y
    return Y, transform.stdvs.square() * model.rows.D


def _set_units(model: ScalableModel, means: Float[Tensor, "1 m"], stdvs: Float[Tensor, "1 m"]) -> None:
    """Change the units of targets and predictions; the model inside stays as it is."""
    transform = model.outcome_transform
    assert isinstance(transform, Standardize)
    transform.means, transform.stdvs = means.to(transform.means), stdvs.to(transform.stdvs)
    transform._stdvs_sq = transform.stdvs.square()  # noqa: SLF001  (BoTorch's own copy of the scales)


def _become(model: ScalableModel, other: ScalableModel) -> None:
    """Turn a module, in place, into another."""
    object.__setattr__(model, "__dict__", other.__dict__)


def _take_over(model: ScalableModel, before: ScalableModel) -> None:
    """Copy the hyperparameters, grids and points of the model before; keep rows and units."""
    own = {k: v for k, v in model.state_dict().items() if k.startswith("outcome_transform.")}
    taken = {k: v for k, v in before.state_dict().items() if not k.startswith("outcome_transform.")}
    model.load_state_dict({**taken, **own})


def _fitted(model: ScalableModel, before: ScalableModel | None, streamed: ScalableModel | None, refit: Refit) -> bool:
    """Keep the better of two fits, from current hyperparameters and from the prior's; return False if both failed."""
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
    best = refit.better(starts, model.rows.count if model.rows is not None else 0)
    if best is None and before is None:
        raise FitError(
            f"{type(model).__name__}: the first fit failed. The FitWarning before this error gives the reason."
        )
    if best is None and before is not None:
        _take_over(model, before)
    elif isinstance(best, ScalableModel) and best is not model:
        _become(model, best)
    return best is not None
