"""Register with Ax's two dispatchers how our models are made and fitted. Surrogate, Adapter and Generator are stock."""

import logging
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from ax.core.data import MAP_KEY
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.surrogate import Surrogate, submodel_input_constructor
from ax.generators.torch.botorch_modular.utils import ModelConfig, fit_botorch_model
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from torch import Tensor

from bo_scale.ax.internals import submodels_of, training_data_of
from bo_scale.ax.surrogates.automatic import Automatic
from bo_scale.ax.surrogates.stream import compare_rows, due, follow, stream_of
from bo_scale.errors import InvalidDataError
from bo_scale.models.catalogue import options_of, preset, require_dimension
from bo_scale.models.choice.automatic import AutomaticModel
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import ChoiceReport
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.refit import GROWTH, Refit
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows
from bo_scale.models.softki import SoftKI

logger = logging.getLogger("bo_scale.ax")


@dataclass(frozen=True)
class _Handed:
    """The information that the constructor of inputs leaves for the fit, which Ax calls right after it."""

    X: Tensor
    before: ScalableModel | None
    refit: Refit
    chosen: str
    config: str
    curves: bool


_HANDED: ContextVar[_Handed | None] = ContextVar("handed", default=None)


def _inputs(
    botorch_model_class: type[ScalableModel],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Return the constructor arguments of a model of ours: Ax's own, with the options with which our models search.

    Targets are standardised by the model itself: Ax's own standardisation changes at every trial, the model's at fits.

    Raises:
        SpaceError: if the model does not serve the search space.
        UnsupportedError: for tasks, fidelities, or unordered choices that are not one-hot.
    """
    _require_plain(search_space_digest)
    options = dict(model_config.model_options)
    refit, chosen = Refit(options.pop("refit_growth", GROWTH)), ""
    d, model_class = len(search_space_digest.bounds), botorch_model_class
    plan: Plan | None = None
    if issubclass(botorch_model_class, Automatic):
        choice = _chosen(surrogate, dataset)
        plan, model_class, chosen = choice.plan, choice.plan.model, f"auto: {choice.plan}, {choice.reason}"
        options = {name: value for name, value in options.items() if name in options_of(model_class)}
    require_dimension(model_class, d, options, because=" after Ax's transforms")
    plain = replace(model_config, botorch_model_class=model_class, model_options={})
    base = submodel_input_constructor.dispatch(Model)
    inputs: dict[str, Any] = base(
        model_class, model_config=plain, dataset=dataset, search_space_digest=search_space_digest, surrogate=surrogate
    )
    if model_config.outcome_transform_classes is None:
        inputs["outcome_transform"] = Standardize(dataset.Y.shape[-1])
    X = inputs["train_X"]
    bounds = torch.tensor(search_space_digest.bounds, dtype=X.dtype, device=X.device).mT
    if "train_Yvar" in inputs:
        _require_all_known(dataset)
    options.update({name: value for name, value in inputs.items() if name not in ("train_X", "train_Y", "train_Yvar")})
    known, config = "train_Yvar" in inputs, f"{model_config!r} {plan or ''}"
    if plan is None:
        given = preset(model_class, X, known, bounds, options)
    else:
        given = AutomaticModel.search_options(plan, X, known, bounds, options, dataset.Y.shape[-1])
    before = _before(surrogate, dataset, config)
    handed = _Handed(X, before, refit, chosen, config, _has_curves(dataset))
    _HANDED.set(handed)
    made = {**inputs, **given}
    if issubclass(model_class, SoftKI) and isinstance(before, SoftKI) and not _is_fitted(before, inputs, handed):
        made.setdefault("interpolation_points", before.interpolation_points)  # it will follow: no k-means
    return {"model_class": model_class, **made} if botorch_model_class is not model_class else made


def _is_fitted(before: ScalableModel, inputs: dict[str, Any], handed: _Handed) -> bool:
    """Return whether the model of these inputs will be fitted, rather than follow the one before."""
    X, Y = inputs["train_X"], inputs["train_Y"]
    assert before.rows is not None, "Ax keeps all data"
    changed = compare_rows(before.rows, X, Y, inputs.get("train_Yvar")).changed
    return due(stream_of(before), len(X), changed, handed.refit, handed.curves)


def _fit(
    model: ScalableModel, mll_class: type[MarginalLogLikelihood], mll_options: dict[str, Any] | None = None
) -> None:
    """Fit a model of ours, or update it from the one before.

    Raises:
        UnsupportedError: for another objective than the model's own evidence or bound.
    """
    if mll_class is not ExactMarginalLogLikelihood or mll_options:
        raise UnsupportedError("mll_class, mll_options: models of bo_scale define what a fit maximises. Omit both.")
    handed = _HANDED.get()
    _HANDED.set(None)
    assert model.rows is not None, "Ax keeps all data"
    if handed is None or handed.X.data_ptr() != model.rows.X.data_ptr() or len(handed.X) != model.rows.count:
        handed = _Handed(model.rows.X, None, Refit(), "", "", False)  # a model that was not made by Ax
    follow(model, handed.before, handed.refit, handed.chosen, handed.curves)
    model.__dict__["_config"] = handed.config


submodel_input_constructor.add((ScalableModel,), _inputs)
fit_botorch_model.add((ScalableModel,), _fit)


def _require_plain(digest: SearchSpaceDigest) -> None:
    for name in ("task_features", "fidelity_features", "hierarchical_dependencies"):
        if getattr(digest, name):
            raise UnsupportedError(
                f"search space: models of bo_scale do not support {name.replace('_', ' ')}. Use a BoTorch model that "
                f"does."
            )
    if digest.categorical_features:
        raise UnsupportedError(
            "search space: unordered choices must be one-hot. Use the transforms bo_scale.ax.TRANSFORMS."
        )


@dataclass(frozen=True)
class _Choice:
    """A choice of the model, and the data that it saw."""

    rows: Rows
    report: ChoiceReport


def _chosen(surrogate: Surrogate, dataset: SupervisedDataset) -> ChoiceReport:
    """Choose the model for these data, anew when observations have doubled or some that the choice saw have changed.

    Ax cross-validates with models of fewer rows, also in clones, that share the spec: they keep the choice.
    """
    choices: dict[Any, _Choice] = surrogate.surrogate_spec.__dict__.setdefault("_chosen", {})
    outcomes, X, Y = tuple(dataset.outcome_names), dataset.X.double(), dataset.Y[:, :1].double()
    noise = None if dataset.Yvar is None or bool(dataset.Yvar.isnan().any()) else dataset.Yvar[:, :1].double()
    last, automatic = choices.get(outcomes), AutomaticModel()
    if last is not None and last.rows.X.shape[-1] == X.shape[-1] and not automatic.due(len(X), last.rows.count):
        settled = _last(surrogate, dataset) is None or _has_curves(dataset)
        if settled or not compare_rows(last.rows, X, Y, noise).changed:
            return last.report
    report = automatic.choose(X, Y, noise)
    choices[outcomes] = _Choice(Rows.of(X, Y, torch.ones_like(Y) if noise is None else noise), report)
    return report


def _before(surrogate: Surrogate, dataset: SupervisedDataset, config: str) -> ScalableModel | None:
    """Return the previous model of the same configuration; None for a fold of cross-validation."""
    before = _last(surrogate, dataset)
    return before if before is not None and before.__dict__.get("_config") == config else None


def _last(surrogate: Surrogate, dataset: SupervisedDataset) -> ScalableModel | None:
    """Return the previous model of any configuration; None for a fold of cross-validation."""
    whole = any(dataset is each for each in training_data_of(surrogate))
    before = submodels_of(surrogate).get(tuple(dataset.outcome_names))
    return before if whole and isinstance(before, ScalableModel) else None


def _has_curves(dataset: SupervisedDataset) -> bool:
    """Return whether the step of a trial is an input."""
    return MAP_KEY in dataset.feature_names


def _require_all_known(dataset: SupervisedDataset) -> None:
    """Check that all trials have a standard error.

    Raises:
        InvalidDataError: if some have none; the message names the trials, or the others if those are fewer.
    """
    assert dataset.Yvar is not None
    unknown = dataset.Yvar.isnan().any(-1).cpu()
    if not bool(unknown.any()):
        return
    assert dataset.group_indices is not None, "trials are the groups"
    few_known = 2 * int(unknown.sum()) > len(unknown)
    trials = sorted(set(dataset.group_indices[~unknown if few_known else unknown].tolist()))
    named = f"trials {trials[:5]}" + (f" and {len(trials) - 5} more" if len(trials) > 5 else "")
    name = dataset.outcome_names[0]
    have, value, other = ("a", "value", "give all others one") if few_known else ("no", "(value, sem)", "give none")
    raise InvalidDataError(
        f"{name}: {named} have {have} standard error, unlike the others. Attach their data again, "
        f"`client.attach_data({trials[0]}, {{{name!r}: {value}}})`, or {other}."
    )
