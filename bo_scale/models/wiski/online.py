"""Online learning: predict, observe, take one gradient step per observation, in constant time, without storing data."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch.mlls import ExactMarginalLogLikelihood
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.waiting import reading_once
from bo_scale.gp.weight_space.evidence import log_density
from bo_scale.gp.weight_space.features.projection import ProjectedFeatures, in_double
from bo_scale.gp.weight_space.inference import Observed, WeightSpaceInference
from bo_scale.gp.weight_space.posterior import WeightLocated, WeightSpacePosterior
from bo_scale.gp.weight_space.sparse_precision import sparse_prior_of
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.evidence import loss_in_parts
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.conditioning import new_inputs
from bo_scale.models.shell.distributions import marginals, standardisation
from bo_scale.models.shell.door import require_device, require_finite, require_given, require_noise, require_tensors
from bo_scale.models.shell.lending import child_of
from bo_scale.models.shell.storage import model_content, restore_model, write_atomically
from bo_scale.models.shell.weight_space import drop_rows, evidence_of, outdate
from bo_scale.models.wiski.model import WISKI
from bo_scale.training.relative_adam import RelativeAdam

QUANTILE = 1.959964
"""Quantile of the standard normal; 95 % lie within ± this."""


@dataclass(frozen=True)
class Prequential:
    """Scores of predictions of observations, each made before its observation.

    Attributes:
        count: Number of observations.
        squares: Summed squared errors of each output, in squared raw units.
        losses: Summed −log p of each output.
        covered: Number of values of each output within the 95 % interval.
    """

    count: int
    squares: Float[Tensor, " m"]
    losses: Float[Tensor, " m"]
    covered: Float[Tensor, " m"]

    @classmethod
    def none(cls, m: int, device: torch.device | None = None) -> "Prequential":
        """Return the scores before the first observation."""
        return cls(0, *torch.zeros(3, m, dtype=torch.float64, device=device))

    def to(self, device: torch.device) -> "Prequential":
        """Return the scores on another device."""
        return Prequential(self.count, *(sums.to(device) for sums in (self.squares, self.losses, self.covered)))

    def observe(
        self, Y: Float[Tensor, "q m"], mean: Float[Tensor, "q m"], variance: Float[Tensor, "q m"]
    ) -> "Prequential":
        """Return the scores with q more observations, given their predicted means and variances, in raw units."""
        Y, mean, variance = (values.detach().double() for values in (Y, mean, variance))
        square = (Y - mean).square()
        relative = square / variance
        twice_losses = (relative + (2 * math.pi * variance).log()).sum(0)
        return Prequential(
            self.count + len(Y),
            self.squares + square.sum(0),
            torch.add(self.losses, twice_losses, alpha=0.5),
            self.covered + (relative <= QUANTILE**2).sum(0),
        )

    @property
    def rmse(self) -> Float[Tensor, " m"]:
        """The root mean squared error of each output; NaN before the first observation."""
        return (self.squares / self.count).sqrt()

    @property
    def nll(self) -> Float[Tensor, " m"]:
        """The mean −log p(y)."""
        return self.losses / self.count

    @property
    def coverage(self) -> Float[Tensor, " m"]:
        """The share of values within the 95 % interval."""
        return self.covered / self.count


@dataclass(frozen=True)
class _Seen:
    """What a step knows when it has predicted.

    Attributes:
        present: The inference that predicted.
        rows: Transformed inputs and targets, and relative noise variances.
        scores: The scores with this prediction.
        observed: The inference with the rows; None if the projection learns first.
    """

    present: WeightSpaceInference
    rows: Observed
    scores: Prequential
    observed: WeightSpaceInference | None


class OnlineLearner:
    """A model that learns from a stream: [WISKI] algorithm 1. Time and memory per step do not grow; no data are kept.

    A step does four things: it predicts; takes one step up log p(y | data so far) in the projection's parameters
    (eq. 18: earlier observations keep their old features); observes; and takes one step up the evidence of all
    observations in the other hyperparameters. Steps are Adam's. They change positive hyperparameters by factors: 0.005
    means half a per cent.

    The given model is not changed. The grid and the transforms are not learned: values far outside their range need a
    new model.

    Args:
        model: A WISKI, fitted to the initial data.
        lr: Step size for kernel, mean and noise; 0 keeps them fixed.
        projection_lr: Step size for the projection; 0 keeps it fixed.

    Raises:
        UnsupportedError: for a model with fantasies, or an outcome transform other than Standardize.

    Examples:
        >>> X = torch.rand(60, 1, dtype=torch.float64)
        >>> Y = (6 * X).sin()
        >>> learner = OnlineLearner(WISKI(X[:20], Y[:20], grid_size=16))
        >>> for x, y in zip(X[20:].split(1), Y[20:].split(1)):
        ...     learner.step(x, y)
        >>> learner.scores.count, learner.model.num_observations
        (40, 60)
    """

    def __init__(self, model: WISKI, lr: float = 5e-3, projection_lr: float = 5e-4) -> None:
        if lr < 0 or projection_lr < 0:
            raise InvalidArgumentError(f"lr={lr}, projection_lr={projection_lr}: must not be negative.")
        if model._fantasies is not None:
            raise UnsupportedError("model: it holds fantasies. Pass the model that they were made from.")
        every = list(range(model.num_outputs))
        if hasattr(model, "outcome_transform") and standardisation(model.outcome_transform, every) is None:
            name = type(model.outcome_transform).__name__
            raise UnsupportedError(f"model: its outcome_transform is a {name}. Use Standardize, or none.")
        self._model = clone_module(model).eval()
        drop_rows(self._model)
        self._scores = Prequential.none(model.num_outputs, model._device)
        self._optimisers = self._make_optimisers(lr, projection_lr)

    def _make_optimisers(self, lr: float, projection_lr: float) -> dict[str, RelativeAdam]:
        """Make the optimisers of the learned parameters: one for the projection, one for the rest."""
        of_features = {id(p) for p in self._model._feature_parameters()}
        for p in self._model._feature_parameters():
            p.requires_grad_(projection_lr > 0)
        learned = {name: p for name, p in self._mll.named_parameters() if p.requires_grad}
        bounds = get_parameters_and_bounds(self._mll)[1]
        groups = {
            "projection": ({name: p for name, p in learned.items() if id(p) in of_features}, projection_lr),
            "prior": ({name: p for name, p in learned.items() if id(p) not in of_features}, lr),
        }
        return {name: RelativeAdam(ps, bounds, rate) for name, (ps, rate) in groups.items() if ps and rate > 0}

    @property
    def _mll(self) -> ExactMarginalLogLikelihood:
        """The mll, which knows the priors."""
        return ExactMarginalLogLikelihood(self._model.likelihood, self._model)

    @property
    def scores(self) -> Prequential:
        """RMSE, NLL and coverage of all predictions so far, in raw units, on the CPU.

        Each prediction was made before its observation.
        """
        return self._scores.to(torch.device("cpu"))

    @property
    def model(self) -> WISKI:
        """A copy of the present model; later steps do not change it. It keeps no data."""
        model = clone_module(self._model)
        for p in model._feature_parameters():
            p.requires_grad_(False)
        return model

    def posterior(self, X: Tensor, **options: Any) -> Any:
        """Return the posterior of the present model, without a copy. Arguments as for the model's `posterior`."""
        return self._model.posterior(X, **options)

    def step(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> None:
        """Predict, observe and learn. O(s³) for a prior of rank s, whatever the number of earlier observations.

        Args:
            X: Raw inputs `q × d`. Several observations are predicted and learned from together.
            Y: Raw values `q × m`.
            noise: Noise variances `q × m` as for `condition_on_observations`.

        Raises:
            InvalidDataError: if shapes do not fit or values are not finite. The learner is then unchanged.
        """
        model = self._model
        present, roots = self._present()
        seen = reading_once(model._device, lambda: self._predict_and_observe(present, roots, X, Y, noise))
        if seen is None:
            return
        self._scores = seen.scores
        observed = self._learn_projection(seen.present, *seen.rows) if seen.observed is None else seen.observed
        model._inference = observed
        model._tell_likelihood()
        if "prior" in self._optimisers:
            mll, statistics = self._mll, observed.statistics
            self._optimisers["prior"].step(
                lambda: reading_once(
                    model._device, lambda: loss_in_parts(model, mll, evidence_of(model, statistics, roots))
                )
            )
            outdate(model)

    def _present(self) -> tuple[WeightSpaceInference, list[LinearOperator] | None]:
        """Return the inference at the present hyperparameters, and differentiable roots of the prior if it is learned.

        The prior is computed once, for the prediction and for the gradient. Only a sparse precision has no root.
        """
        model, kept = self._model, self._model._inference
        assert isinstance(kept, WeightSpaceInference), "a learner's model has no fantasies"
        if "prior" in self._optimisers:
            features = tuple(model._feature_map(j) for j in range(model.num_outputs))
            if sparse_prior_of(features[0]) is None:
                roots = [phi.prior_root() for phi in features]
                with torch.no_grad():
                    return kept.at(model._hyperparameters_now(model._hyperparameters(), features)), roots
        inference = model.inference
        assert isinstance(inference, WeightSpaceInference), "a learner's model has no fantasies"
        return inference, None

    @torch.no_grad()
    def _predict_and_observe(
        self,
        present: WeightSpaceInference,
        roots: list[LinearOperator] | None,
        X: Tensor,
        Y: Tensor,
        noise: Tensor | None,
    ) -> _Seen | None:
        """Predict, and observe unless the projection learns first; return None for no observations."""
        require_given(X=X, Y=Y)
        require_tensors(noise=noise)
        require_device(self._model._device, X=X, Y=Y, noise=noise)
        require_finite(X=X, Y=Y)
        model, d = self._model, self._model._num_inputs
        if X.ndim != 2 or X.shape[-1] != d or Y.shape != (len(X), model.num_outputs):
            expected = f"q × {d} and q × {model.num_outputs}"
            raise InvalidDataError(f"X, Y: shapes {tuple(X.shape)} and {tuple(Y.shape)}, expected {expected}.")
        require_noise(noise, Y.shape, "noise", zero=model.knows_noise)
        if len(X) == 0:
            return None
        inputs = new_inputs(model, X)
        transform = child_of(model, "outcome_transform")
        targets = Y if transform is None else transform(Y=Y, X=inputs)[0]
        D = model._relative_noise(targets, noise).expand_as(targets)
        rows = inputs.to(torch.float64), targets.to(torch.float64), D
        if roots is not None:
            present = present.with_roots(roots)
        plain = child_of(model, "input_transform") is None
        points = rows[0] if plain else model.transform_inputs(X).to(torch.float64)
        located = [process.locate(points) for process in present.processes]
        units = None if transform is None else standardisation(transform, list(range(model.num_outputs)))
        added = model.mean_noise if noise is None else noise
        scores = self._scores.observe(Y, *marginals(present, points, located, added, units))
        observed = None
        if "projection" not in self._optimisers:
            Phi = [each.features for each in located if plain and isinstance(each, WeightLocated)]
            later = present.derived_from()  # its processes are made anew, at other hyperparameters
            observed = later.counting(*rows, Phi or None) if self._optimisers else present.observe(*rows)
        return _Seen(present, rows, scores, observed)

    def _learn_projection(
        self,
        present: WeightSpaceInference,
        X: Float[Tensor, "q d"],
        Y: Float[Tensor, "q m"],
        D: Float[Tensor, "q m"],
    ) -> WeightSpaceInference:
        """Take one step up log N(y; μ + φᵀw, φᵀBBᵀφ + σ²D): the gradient of [WISKI] eq. 18. Then observe."""
        model, known, device = self._model, present.hyperparameters, self._model._device
        self._optimisers["projection"].step(
            lambda: [
                -reading_once(
                    device, lambda: new_log_density(model, present.processes, X, Y, present.noise * D) / len(X)
                )
            ]
        )
        assert model.projection is not None, "it was learned"
        projection = in_double(model.projection, frozen=True)
        features = tuple(
            replace(phi, projection=projection) for phi in known.features if isinstance(phi, ProjectedFeatures)
        )
        kept = present.derived_from(
            hyperparameters=replace(known, features=features),
            summed=tuple(replace(each, features=()) for each in present.statistics),  # of several projections
            feature_values=model._feature_values(),
        )
        with torch.no_grad():
            return reading_once(device, lambda: kept.counting(X, Y, D))

    # ------------------------------------------------------------------ saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the complete state to a file of tensors, atomically.

        Args:
            path: The file to write.
        """
        write_atomically(self._content(), path)

    def _content(self) -> dict[str, Any]:
        """Return the complete state as stored in a file."""
        scores = {name: getattr(self._scores, name) for name in ("count", "squares", "losses", "covered")}
        optimisers = {name: adam.state() for name, adam in self._optimisers.items()}
        return {"model": model_content(self._model), "scores": scores, "optimisers": optimisers}

    def restore(self, path: str | os.PathLike[str]) -> "OnlineLearner":
        """Restore a saved learner into this one, which then continues to the last bit, and return it.

        Args:
            path: The file to read.

        Raises:
            InvalidDataError: if the file holds something else, or a learner of other hyperparameters.
        """
        self._restore(torch.load(path, weights_only=True, map_location=self._model._device), path)
        return self

    def _restore(self, saved: Any, path: str | os.PathLike[str]) -> None:
        """Restore the content of a file."""
        if not isinstance(saved, dict) or set(saved) != {"model", "scores", "optimisers"}:
            raise InvalidDataError(f"{path}: holds no OnlineLearner.")
        if set(saved["optimisers"]) != set(self._optimisers):
            raise InvalidDataError(
                f"{path}: the saved learner learned {sorted(saved['optimisers'])}, this one {sorted(self._optimisers)}"
                f". Construct this one with the saved lr and projection_lr."
            )
        restore_model(self._model, saved["model"], str(path))
        self._scores = Prequential(**saved["scores"]).to(self._model._device)
        for name, adam in self._optimisers.items():
            adam.restore(saved["optimisers"][name])


def new_log_density(
    model: WISKI,
    processes: Sequence[PosteriorProcess],
    X: Float[Tensor, "q d"],
    Y: Float[Tensor, "q m"],
    noise: Float[Tensor, "q m"],
) -> Float[Tensor, ""]:
    """Return log p(y | data so far), summed over outputs, differentiable only in the projection of new rows. O(p s q).

    Args:
        model: The model with the projection.
        processes: Its posteriors of w, held fixed.
        X: New transformed inputs.
        Y: New transformed targets.
        noise: Noise variances of the new targets.
    """
    found = Y.new_zeros(())
    for j, process in enumerate(processes):
        assert isinstance(process, WeightSpacePosterior), "projected features have no sparse precision"
        assert isinstance(process.features, ProjectedFeatures), "called for a projection"
        assert model.projection is not None, "called for a projection"
        live = replace(process.features, projection=in_double(model.projection, frozen=False))
        located = process.located(live(X))
        K = located.covariance(located)
        found = found + log_density(K, Y[:, j] - located.mean, noise[:, j], found.new_ones(()), found.new_zeros(()))
    return found
