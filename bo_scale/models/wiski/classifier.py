"""Classification by regression: Dirichlet targets with known noise, one weight-space posterior per class."""

import math
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.fit import fit_gpytorch_mll
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.posteriors.posterior import Posterior
from botorch.utils.sampling import draw_sobol_normal_samples
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.features.projection import width
from bo_scale.models.wiski.grid_sizes import Sizes
from bo_scale.models.wiski.model import WISKI

CONCENTRATION = 0.01
"""The paper's α_ε."""


def dirichlet_targets(
    labels: Int[Tensor, " n"], num_classes: int, concentration: float = CONCENTRATION
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
    """Return regression targets and noise variances of every class for labels.  [WISKI] appendix A.5.

    A label implies Dirichlet(α) for the class probabilities, α_c = 1[label = c] + α_ε: independent Gamma(α_c, 1),
    normalised by their sum. Each is approximated by a log-normal of equal mean and variance, whose logarithm has

    mean log α_c − σ_c²/2 and variance σ_c² = log(1 + 1/α_c).

    Targets and variances are float64.

    Args:
        labels: Class labels 0 … C − 1.
        num_classes: Number of classes C.
        concentration: α_ε; the smaller, the more certain a single label is.

    Raises:
        InvalidDataError: if labels are not such numbers.
    """
    if num_classes < 2 or concentration <= 0:
        raise InvalidDataError(
            f"num_classes={num_classes}, concentration={concentration}: num_classes must be at least 2 and "
            f"concentration positive."
        )
    if labels.numel() > 0 and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise InvalidDataError(
            f"labels: they run from {int(labels.min())} to {int(labels.max())}, expected 0…{num_classes - 1}."
        )
    alpha = torch.nn.functional.one_hot(labels.long(), num_classes).double() + concentration
    variance = (1 / alpha).log1p()
    return alpha.log() - variance / 2, variance


class WISKIClassifier(Model):
    """An online Gaussian process classifier. The cost of an observation does not grow with their number.

    The log-probabilities of the classes, up to a common constant, are the C outputs of a WISKI on Dirichlet targets,
    whose noise is known and differs between rows. `posterior` returns their posterior, and `probabilities` the mean of
    their softmax.

    To use it as a constraint of an acquisition function, put it beside the objective in a `ModelList`; `feasibility`
    gives the probability of a class in each sample:

        qLogExpectedImprovement(
            ModelList(objective, classifier), best_f, objective=LinearMCObjective(weights), fat=[None],
            constraints=[classifier.feasibility(1, first=1)],
        )

    Args:
        train_X: Inputs `n × d`, in raw units.
        labels: Class labels, `n` or `n × 1`, numbers 0 … C − 1.
        num_classes: Number of classes C. None means the largest label plus one, and at least two.
        bounds: As for WISKI.
        grid_size: As for WISKI.
        covar_module: As for WISKI, with a batch of C. None means an RBF with a prior scaled by d, times an outputscale
            whose prior suits the targets.
        input_transform: As for WISKI.
        concentration: α_ε; the smaller, the more certain a single label is. If labels are deterministic, such as
            whether a constraint holds, 1e-4 gives a sharper boundary.
        projection: As for WISKI; all classes share it.
        **options: Further options of WISKI: `rank`, `basis`, `keep_data`, ….

    References:
        D. Milios, R. Camoriano, P. Michiardi, L. Rosasco, M. Filippone. Dirichlet-based Gaussian processes for
        large-scale calibrated classification. NeurIPS 2018.

    Examples:
        >>> X = torch.rand(80, 2, dtype=torch.float64)
        >>> classifier = WISKIClassifier(X, (X.sum(-1) > 1).long(), grid_size=8)
        >>> classifier = classifier.condition_on_observations(X[:1], torch.ones(1, dtype=torch.long))
        >>> classifier.probabilities(X[:3]).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        train_X: Tensor,
        labels: Tensor,
        num_classes: int | None = None,
        bounds: Tensor | None = None,
        grid_size: Sizes = None,
        covar_module: Kernel | None = None,
        input_transform: InputTransform | None = None,
        concentration: float = CONCENTRATION,
        projection: torch.nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        found = _require_labels(labels, len(train_X))
        count = max(2, int(found.max()) + 1 if len(found) > 0 else 2) if num_classes is None else num_classes
        self.concentration = concentration
        targets, noise = (values.to(train_X) for values in dirichlet_targets(found, count, concentration))
        batch = torch.Size([count])
        middle, spread = _range(concentration)
        if covar_module is None:
            d = _width(train_X, input_transform, projection)
            covar_module = ScaleKernel(
                get_covar_module_with_dim_scaled_prior(ard_num_dims=d, batch_shape=batch),
                batch_shape=batch,
                outputscale_prior=LogNormalPrior(2 * math.log(spread), 1.0),
            )
            covar_module.outputscale = spread**2
        mean = ConstantMean(batch_shape=batch)
        mean.initialize(constant=middle)
        self.model = WISKI(
            train_X,
            targets,
            noise,
            bounds=bounds,
            grid_size=grid_size,
            covar_module=covar_module,
            mean_module=mean,
            input_transform=input_transform,
            outcome_transform=None,
            projection=projection,
            **options,
        )

    @classmethod
    def of(cls, model: WISKI, concentration: float = CONCENTRATION) -> "WISKIClassifier":
        """Make a classifier from a WISKI on Dirichlet targets, such as online learning returns.

        Args:
            model: A WISKI with C outputs, known noise and no outcome transform.
            concentration: The α_ε that its targets were made with.
        """
        classifier = cls.__new__(cls)
        Model.__init__(classifier)
        classifier.concentration = concentration
        classifier.model = model
        return classifier

    # ------------------------------------------------------------------ what BoTorch asks for

    @property
    @override
    def num_outputs(self) -> int:
        """The number of classes C."""
        return self.model.num_outputs

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """The batch shape of the model of the log-probabilities."""
        return self.model.batch_shape

    @override
    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor | None = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the posterior of the log-probabilities at raw inputs `… q d`, up to a common constant: `… q C`.

        Args:
            X: Raw inputs; the q points are considered jointly.
            output_indices: Classes to return; None for all.
            observation_noise: As for WISKI; for Dirichlet targets it has little meaning.
            posterior_transform: A transform of the posterior, applied last.
        """
        found: Posterior = self.model.posterior(
            X,
            output_indices=output_indices,
            observation_noise=observation_noise,
            posterior_transform=posterior_transform,
        )
        return found

    @override
    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> "WISKIClassifier":
        """Return a new classifier that has also observed labels; this one is unchanged. The cost does not grow with n.

        Args:
            X: Raw inputs `q × d`.
            Y: Class labels, `q` or `q × 1`.
            **kwargs: Ignored, as BoTorch's models do.
        """
        targets, noise = self.targets(Y, len(X))
        return WISKIClassifier.of(self.model.condition_on_observations(X, targets, noise=noise), self.concentration)

    def targets(self, labels: Tensor, n: int) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
        """Return the regression targets and noise variances for labels.

        Args:
            labels: Class labels, `n` or `n × 1`.
            n: Required number of labels.
        """
        found = _require_labels(labels, n)
        targets, noise = dirichlet_targets(found, self.num_outputs, self.concentration)
        like = torch.empty(0, dtype=self.model._dtype, device=self.model._device)
        return targets.to(like), noise.to(like)

    # ------------------------------------------------------------------ fitting and predicting

    def fit(self, **kwargs: Any) -> "WISKIClassifier":
        """Fit hyperparameters by the evidence of the targets, in place, and return the classifier.

        Args:
            **kwargs: Arguments for BoTorch's `fit_gpytorch_mll`.
        """
        fit_gpytorch_mll(ExactMarginalLogLikelihood(self.model.likelihood, self.model), **kwargs)
        return self

    def probabilities(self, X: Tensor, num_samples: int = 256, seed: int = 0) -> Float[Tensor, "*b q c"]:
        """Return class probabilities E softmax(f(x)) at raw X `… q d`, by quasi-random draws. Differentiable in X.

        Args:
            X: Raw inputs; each point is considered by itself.
            num_samples: Number of draws; 256 give an error of about 0.001.
            seed: Seed of the draws. The global random state is not changed.
        """
        posterior: Any = self.model.posterior(X.unsqueeze(-2))
        mean, sd = posterior.mean.squeeze(-2), posterior.variance.squeeze(-2).clamp_min(0.0).sqrt()
        z = draw_sobol_normal_samples(self.num_outputs, num_samples, X.device, mean.dtype, seed=seed)
        draws = mean + sd * z.reshape(num_samples, *[1] * (mean.ndim - 1), -1)
        return draws.softmax(-1).mean(0)

    def predict(self, X: Tensor) -> Int[Tensor, "*b q"]:
        """Return the class with the largest mean at raw inputs `… q d`."""
        return self.model.posterior_mean(X).argmax(-1)

    def feasibility(self, label: int, first: int = 0) -> Callable[[Tensor], Tensor]:
        """Return a function that maps posterior samples to the probability of a class: softmax of this model's outputs.

        Pass it in `constraints` of an acquisition function, with `fat` None for it: a probability needs no sigmoid.

        Args:
            label: The class that is feasible.
            first: Index of this model's first output in the `ModelList`.

        Raises:
            InvalidDataError: if there is no such class.
        """
        count = self.num_outputs
        if not 0 <= label < count:
            raise InvalidDataError(f"label={label}: expected one of 0…{count - 1}.")

        def probability(samples: Tensor) -> Tensor:
            return samples[..., first : first + count].softmax(-1)[..., label]

        return probability


def _require_labels(labels: Tensor, n: int) -> Int[Tensor, " n"]:
    """Return n labels as integers."""
    flat = labels.reshape(-1)
    if labels.shape not in ((n,), (n, 1)):
        raise InvalidDataError(f"labels: shape {tuple(labels.shape)}, expected ({n},) or ({n}, 1).")
    if flat.is_floating_point() and not bool((flat == flat.round()).all()):
        raise InvalidDataError("labels: expected whole numbers, the indices of the classes.")
    return flat.long()


def _range(concentration: float) -> tuple[float, float]:
    """Return the middle and half the range of the targets."""
    targets, _ = dirichlet_targets(torch.tensor([0]), 2, concentration)
    high, low = targets.flatten().tolist()
    return (high + low) / 2, (high - low) / 2


def _width(X: Tensor, input_transform: InputTransform | None, projection: torch.nn.Module | None) -> int:
    """Return the number of dimensions of the kernel."""
    with torch.no_grad():
        return width(projection, X[:1] if input_transform is None else input_transform.preprocess_transform(X[:1]))
