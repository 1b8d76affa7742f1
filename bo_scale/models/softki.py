"""SoftKI: a GP interpolated by the softmax of distances to learned points, for higher dimensions."""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.optim.utils import get_parameters_and_bounds
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float, Int
from scipy.cluster.vq import kmeans2
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import FitWarning, InvalidArgumentError, InvalidDataError, NotPositiveDefiniteError
from bo_scale.gp.weight_space.features.softmax import DISTANCES, SoftmaxFeatures, softmax_weights
from bo_scale.gp.weight_space.inference import FromRows, Hyperparameters
from bo_scale.gp.weight_space.predictive_variance import DistanceVariance
from bo_scale.models.fitting.evidence import fit_evidence
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.strategies import StagedFit
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.door import require_finite
from bo_scale.models.shell.kernels import OutputKernel, default_scaled_kernel, metric_of, require_inputs_of
from bo_scale.models.shell.weight_space import Missing, WeightSpaceModel, correction_of, drop_rows, evidence_of
from bo_scale.training.minibatch import batch_log_evidence, pseudo_log_evidence, train_on_batches
from bo_scale.training.time_limit import no_time_limit

Solver = Literal["statistics", "qr"]

METRIC = 0.4
"""Largest temperature in lengthscales."""
NEAR = 0.923
"""Correlation of rows a temperature apart: that of an RBF kernel at 0.4 lengthscales, of Matérn-1/2 at 0.08."""
CUSP = 0.05
"""Shift of the points, in temperatures: interpolation has a cusp at each point, which should not be at a row."""
WIDEST = 30.0
"""Largest temperature, in standard deviations of an input."""
TRAINED, STEPS = 100, 50
"""Default: the number of rows from which points are trained, and the number of steps."""
HELD_OUT = 50
"""Number of rows that are held out at least, of 200 or more."""
KMEANS_ROWS, KMEANS_ROUNDS = 20_000, 10
"""Maximum number of rows for k-means, and its iterations. Training moves its centres later."""


class SoftKI(WeightSpaceModel):
    """A GP interpolated from p learned points by a softmax of distances. An observation costs O(p²), whatever n is.

    k(x, x') ≈ W(x) K_zz W(x')ᵀ with W(x) = softmax_j(−‖(x − z_j)/T‖). This takes O(p) work per dimension, so it serves
    inputs of higher dimension than a grid does, with any kernel. The data enter through additive statistics. These
    depend on the points z and the temperature T, but not on the kernel, the mean or the noise.

    `fit_gpytorch_mll` fits in stages:

    0. An exact GP on at most `subset_size` random rows gives kernel, mean and noise. Points and temperature then follow
       its lengthscales ℓ, unless they are given: k-means of x/ℓ, and T as far as the kernel's correlation is .92: 0.4 ℓ
       for an RBF kernel and 0.08 ℓ for Matérn-1/2, whose values the softmax would else smooth away; with points farther
       apart, their distance, up to 0.4 ℓ. An input that does not matter then does not keep points apart.
    1. Adam on the evidence of batches of rows learns all parameters but the noise, which is fixed at `training_noise`.
    2. The evidence of all data, from their statistics, fits kernel, mean and noise. With `joint_steps` the evidence of
       all data then fits all parameters, and (2) is repeated.
    3. log p(held-out rows | other rows) fits the noise, which looks too small at rows that the points were fitted to.

    Known variances are used as they are, and nothing is held out. A model without rows has stage (2) only.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × m`. Outputs share the points; each has its own hyperparameters.
        train_Yvar: Known noise variances `n × m`. None to learn the noise.
        num_interpolation_points: Number of points p, at most half of the rows: with more, the model would predict its
            own rows without error, and believe that of all others. They start at k-means centres.
        covar_module: Any kernel. None means BoTorch's default, an RBF with a prior scaled by d, times an outputscale
            with prior median 1.
        mean_module: ConstantMean (default) or ZeroMean.
        likelihood: GaussianLikelihood, `StudentTNoise` or "student_t" for data with outliers, or
            FixedNoiseGaussianLikelihood for known variances.
        input_transform: As for SingleTaskGP. Its parameters must be fixed, not learned.
        outcome_transform: As for SingleTaskGP: Standardize by default, None for none. It is learned once, from
            `train_Y`.
        temperature: Temperature T, one number or d of them, in units of the transformed inputs. None means that it
            follows the kernel's lengthscales in a fit. Until then it is each input's standard deviation: the paper's
            T = 1 for standardised inputs, in any units.
        learn_temperature: Whether stage (1) learns T along with the points.
        epochs: Passes of stage (1) over the rows; 0 skips stages (1) and (3). None means as many as make 50 steps, at
            least one, and 0 for fewer than 100 rows, which are too few to learn points from.
        batch_size: Rows per step of stage (1).
        lr: Adam's step size; for points and lengthscales, in units of the range of each input.
        training_noise: Noise variance σ² in stage (1), in squared units of the transformed targets.
        held_out: Share of the rows kept from stage (1) and used in stage (3): at least 50 rows, or a quarter if there
            are fewer than 200. With 0 none are held out.
        joint_steps: Iterations of L-BFGS over all parameters. Each takes exact gradients in two passes over the rows.
            They see held-out rows too, so with many iterations stage (3) underestimates the noise again.
        solver: "statistics", or "qr" for the posterior from a QR decomposition of the rows in the model's dtype. QR
            takes one more pass over the rows and loses half as many digits to rounding. Use it for noise far below
            1e-6, or for float32 hardware.
        missing_variance: Diagonal correction as in FITC: add k(x, x) − W(x) K_zz W(x)ᵀ, where positive, to predicted
            variances. "few" adds it only while there are no more observations than points: optimisation then finds
            better values. With more observations it makes intervals far too wide.
        subset_size: Maximum number of rows for the exact GP of (0), which costs O(subset_size³); 0 skips (0).
        seed: Seed for k-means, the choice of rows and the order of batches.
        progress: Whether fitting shows a progress bar; None shows it only on a terminal.
        interpolation_points: Initial points, `p × d` in units of the transformed inputs, instead of k-means centres.
        keep_data: False keeps only the statistics. Memory is then constant, `train_inputs` is empty and the points stay
            where they start.

    References:
        C. Camaño, D. Huang. High-dimensional Gaussian process regression with soft kernel interpolation. 2024.
        arXiv:2410.21419.

    Examples:
        >>> X = torch.rand(200, 8, dtype=torch.float64)
        >>> model = SoftKI(X, X.square().sum(-1, keepdim=True), num_interpolation_points=50)
        >>> model = model.condition_on_observations(X[:1], torch.zeros(1, 1, dtype=torch.float64))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    _fitting = StagedFit()
    shares_features = True
    interpolation_points: torch.nn.Parameter
    log_temperature: torch.nn.Parameter

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_interpolation_points: int = 512,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | str | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        temperature: float | Tensor | None = None,
        learn_temperature: bool = False,
        epochs: int | None = None,
        batch_size: int = 1024,
        lr: float = 0.01,
        training_noise: float = 1e-3,
        held_out: float = 0.1,
        joint_steps: int = 0,
        solver: Solver = "statistics",
        missing_variance: Missing = False,
        subset_size: int = 1000,
        seed: int = 0,
        progress: bool | None = None,
        interpolation_points: Tensor | None = None,
        keep_data: bool = True,
    ) -> None:
        if solver not in ("statistics", "qr"):
            raise InvalidArgumentError(f"solver={solver!r}: choose 'statistics' or 'qr'.")
        if solver == "qr" and not keep_data:
            raise InvalidArgumentError("solver='qr': it needs the rows. Pass keep_data=True.")
        if min(num_interpolation_points - 1, batch_size - 1, epochs or 0, joint_steps, subset_size) < 0:
            raise InvalidArgumentError(
                "num_interpolation_points, batch_size: must be at least 1; epochs, joint_steps and subset_size: at "
                "least 0."
            )
        if not (lr > 0 and training_noise > 0 and 0 <= held_out < 1):
            raise InvalidArgumentError(
                "lr, training_noise: must be positive; held_out: a share of at least 0 and below 1."
            )
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            mean_module,
            likelihood,
            input_transform,
            outcome_transform,
            check_scaling=covar_module is None,
        )
        self._epochs, self._batch_size, self._lr = epochs, batch_size, lr
        self._training_noise, self._held_out, self._joint_steps = training_noise, held_out, joint_steps
        self._extra = correction_of(missing_variance, DistanceVariance())
        self._solver, self._seed, self._progress = solver, seed, progress
        X = self._transformed_rows()[0]
        spread = _spread(X)
        if interpolation_points is None:
            points = spread * _centres(X / spread, _affordable(num_interpolation_points, len(X)), seed)
        else:
            points = _require_points(interpolation_points, X.shape[-1]).to(X)
        self._num_points, self._subset_size = num_interpolation_points, subset_size
        self._places_points, self._sets_temperature = interpolation_points is None, temperature is None
        if temperature is None:
            temperature = spread
        log_temperature = _require_temperature(temperature, X.shape[-1]).to(X).log()
        self.log_temperature = torch.nn.Parameter(log_temperature, learn_temperature and keep_data)
        self.interpolation_points = torch.nn.Parameter(points, keep_data)
        d, batch_shape = X.shape[-1], self._aug_batch_shape
        given = default_scaled_kernel(d, batch_shape, X.detach()) if covar_module is None else covar_module
        self.covar_module = require_inputs_of(given, d)
        self.to(train_X)
        if not keep_data:
            drop_rows(self)

    # ------------------------------------------------------------------ features

    @override
    def _feature_parameters(self) -> list[torch.nn.Parameter]:
        return [self.interpolation_points, self.log_temperature]

    @override
    def _feature_map(self, output: int, frozen: bool = False) -> SoftmaxFeatures:
        points, temperature = self.interpolation_points.double(), self.log_temperature.exp().double()
        if frozen:
            points, temperature = points.detach().clone(), temperature.detach()
        kernel = OutputKernel.of(self.covar_module, output, self._num_outputs, frozen)
        return SoftmaxFeatures(points, temperature, kernel.matrix, kernel.variance)

    # ------------------------------------------------------------------ fitting

    def fit_stages(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None, record: Recorder) -> None:
        """Fit in place, stage by stage; called by `StagedFit`."""
        if self._rows is not None and self._rows.count > 0 and self._subset_size > 0:
            size = min(self._rows.count, self._subset_size)
            with record.stage(f"exact GP on {size} rows, points and temperature in its metric"):
                start_from_subset(self, self._subset_size, self._seed, optimizer_kwargs)
                self._follow_kernel()
        of_noise = {id(p) for p in self.likelihood.parameters()}
        of_features = {id(p) for p in self._feature_parameters()}
        learned = {name: p for name, p in mll.named_parameters() if p.requires_grad}
        held = torch.empty(0, dtype=torch.long)
        of_prior = {name: p for name, p in learned.items() if id(p) not in of_features}
        noise = {name: p for name, p in learned.items() if id(p) in of_noise}
        epochs = self._num_epochs()
        if self._rows is not None and self._rows.count > 0 and epochs > 0:
            seen, held = self._split()
            parameters = {name: p for name, p in learned.items() if id(p) not in of_noise}
            loss, bounds = self._batch_loss(mll, seen), get_parameters_and_bounds(mll)[1]
            plan = (len(seen), epochs, self._batch_size, self._lr, self._seed, self._progress)
            units = {name: self._range() for name, p in parameters.items() if self._is_in_input_units(name, p)}
            with record.stage(f"interpolation points by {epochs} epochs of Adam on batches"):
                train_on_batches(loss, parameters, bounds, *plan, units)
        with record.stage("hyperparameters of the prior and noise by the evidence of all rows"):
            fit_evidence(mll, of_prior, optimizer_kwargs)
        if self._joint_steps > 0 and self._rows is not None:
            given = optimizer_kwargs or {}
            steps = {**given.get("options", {}), "maxiter": self._joint_steps}
            with record.stage(f"all parameters by {self._joint_steps} iterations of L-BFGS"):
                fit_evidence(mll, learned, {**given, "options": steps})
                fit_evidence(mll, of_prior, optimizer_kwargs)
        if len(held) > 0 and noise:
            with record.stage(f"noise by the evidence of {len(held)} rows held out"), no_time_limit():
                fit_evidence(mll, noise, optimizer_kwargs, self._held_out_evidence(held))

    def _follow_kernel(self) -> None:
        """Place the points by k-means in the kernel's metric, and set the temperature, unless given or held fixed."""
        if not self.interpolation_points.requires_grad:
            return
        X = self._transformed_rows()[0]
        spread = _spread(X)
        scales = metric_of(self.covar_module, X.shape[-1])
        scales = spread if scales is None else scales.to(spread).minimum(WIDEST / METRIC * spread)
        with torch.no_grad():
            if self._places_points:
                points = _centres(X / scales, _affordable(self._num_points, len(X)), self._seed)
            else:
                points = self.interpolation_points / scales
            temperature = self._steps_of_kernel(X, scales).maximum(_gap(points)).clamp_max(METRIC)
            if self._sets_temperature:
                self.log_temperature.copy_((temperature * scales).log())
            if self._places_points:
                apart = torch.Generator().manual_seed(self._seed)
                shift = torch.randn(points.shape, generator=apart, dtype=torch.float64).to(points)
                points = scales * (points + CUSP * temperature * shift)
                learn = self.interpolation_points.requires_grad
                self.interpolation_points = torch.nn.Parameter(points.to(self._dtype), learn)

    def _steps_of_kernel(self, X: Float[Tensor, "n d"], scales: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """Return the distance from the mean row, in lengthscales, up to which the correlation is `NEAR` in all outputs.

        It is 1 − E[(f(x) − f(x'))²]/2v with the mean variance v of f at the rows, for kernels that are not stationary.
        """
        steps = METRIC * torch.linspace(0, 1, 41, dtype=torch.float64, device=X.device)
        line = X.mean(0, dtype=torch.float64) + steps.unsqueeze(-1) * scales.double() / X.shape[-1] ** 0.5
        some = X[:: max(1, len(X) // KMEANS_ROWS)].double()
        near = torch.ones_like(steps, dtype=torch.bool)
        for output in range(self._num_outputs):
            features = self._feature_map(output)
            K, variance = features.covariance(line), features.variance(some).mean()
            near &= K[0, 0] + K.diagonal() - 2 * K[0] <= 2 * (1 - NEAR) * variance
        return steps[near.long().cumprod(0).sum() - 1]

    def _num_epochs(self) -> int:
        if self._epochs is not None or self._rows is None:
            return self._epochs or 0
        n = self._rows.count
        return 0 if n < TRAINED else max(1, STEPS // -(-n // self._batch_size))

    def _is_in_input_units(self, name: str, p: torch.nn.Parameter) -> bool:
        """Return whether each column of a parameter is in units of one input: points and lengthscales."""
        lengthscale = name.endswith("raw_lengthscale") and p.shape[-1] == self.interpolation_points.shape[-1]
        return p is self.interpolation_points or lengthscale

    def _range(self) -> Float[Tensor, " d"]:
        """Return the range of each input, as of a uniform distribution with its standard deviation."""
        return (12**0.5 * _spread(self._transformed_rows()[0])).to(self._dtype)

    def _split(self) -> tuple[Int[Tensor, " s"], Int[Tensor, " h"]]:
        """Return the indices of the rows for stage (1) and of those held out."""
        assert self._rows is not None, "stages over rows need some"
        n = self._rows.count
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self._seed))
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        count = 0 if known or self._held_out == 0 else max(int(self._held_out * n), min(n // 4, HELD_OUT))
        return order[count:], order[:count]

    def _batch_loss(self, mll: MarginalLogLikelihood, seen: Int[Tensor, " s"]) -> Callable[[Tensor], Tensor]:
        """Return the loss of a batch, given as indices of seen rows: −(log evidence)/b − (log priors)/n.

        If a batch's covariance cannot be factorised, its pseudoloss is used instead, with one warning.
        """
        assert self._rows is not None, "stages over rows need some"
        rows, generator = self._rows, torch.Generator().manual_seed(self._seed + 1)
        warned: list[Exception] = []
        X = rows.X if not hasattr(self, "input_transform") else self.input_transform.preprocess_transform(rows.X)
        X, Y, D = X[seen].to(self._dtype), rows.Y[seen].to(torch.float64), rows.D[seen].to(torch.float64)
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = Y.new_ones(()) if known else Y.new_full((), self._training_noise)

        def evidence(W: Tensor, S: Tensor, y: Tensor, d: Tensor) -> Tensor:
            try:
                return batch_log_evidence(W, S, y, d, noise)
            except NotPositiveDefiniteError as error:
                if not warned:
                    warnings.warn(
                        f"SoftKI: the evidence of some batches fails; they are trained by a pseudoloss: {error}",
                        FitWarning,
                        stacklevel=2,
                    )
                    warned.append(error)
                return pseudo_log_evidence(W, S, y, d, noise, generator)

        def loss(batch: Tensor) -> Tensor:
            W = softmax_weights(X[batch], self.interpolation_points, self.log_temperature.exp()).to(torch.float64)
            parts = [
                evidence(W, self._feature_map(j).prior_matrix(), Y[batch, j] - mu, D[batch, j])
                for j, mu in enumerate(self._constants())
            ]
            priors: Tensor = mll._add_other_terms(Y.new_zeros(()), [])
            return -torch.stack(parts).sum() / len(batch) - priors / len(X)

        return loss

    def _held_out_evidence(self, held: Int[Tensor, " h"]) -> Callable[[], Float[Tensor, " m"]]:
        """Return log p(y_held | y_others) = log p(y) − log p(y_others) per output, from two sets of statistics."""
        with torch.no_grad():
            whole = self._seen()
            others = whole.without(*(values[held] for values in self._transformed_rows())).statistics
        return lambda: evidence_of(self, whole.statistics) - evidence_of(self, others)

    @override
    def _better_rows(self, known: Hyperparameters) -> FromRows | None:
        """Return all rows if the solver is a QR decomposition of them."""
        if self._solver == "statistics" or self._rows is None:
            return super()._better_rows(known)
        return FromRows(*self._transformed_rows(), self._dtype)

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load as many points as the state has: a model of other data may have started with more or fewer."""
        points = state_dict.get(prefix + "interpolation_points")
        if points is not None and points.shape[1:] == self.interpolation_points.shape[1:]:
            learn = self.interpolation_points.requires_grad
            self.interpolation_points = torch.nn.Parameter(points.detach().to(self.interpolation_points), learn)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _spread(X: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Return the standard deviations of the columns, and 1 for constant ones."""
    if len(X) < 2:
        return X.new_ones(X.shape[-1])
    spread = X.std(0)
    return torch.where(spread > 0, spread, 1.0)


def _gap(points: Float[Tensor, "p d"]) -> Float[Tensor, ""]:
    """Return the median distance of points from their nearest neighbours."""
    distances = torch.cdist(points.double(), points.double(), compute_mode=DISTANCES)
    return distances.fill_diagonal_(math.inf).amin(-1).median()


def _affordable(count: int, rows: int) -> int:
    """Return the number of points for so many rows: at most half as many, at least one."""
    return min(count, max(1, rows // 2))


def _require_temperature(temperature: float | Tensor, d: int) -> Float[Tensor, " d"]:
    """Return one positive temperature per dimension."""
    values = torch.as_tensor(temperature)
    if values.numel() not in (1, d) or not (values > 0).all() or not values.isfinite().all():
        raise InvalidDataError(f"temperature={temperature}: expected one positive number, or {d} of them.")
    return values.detach().reshape(-1).expand(d)


def _require_points(points: Tensor, d: int) -> Float[Tensor, "p d"]:
    """Check given points and return a copy."""
    require_finite(interpolation_points=points)
    if points.ndim != 2 or points.shape[-1] != d or len(points) == 0:
        raise InvalidDataError(f"interpolation_points: shape {tuple(points.shape)}, expected p × {d}.")
    return points.detach().clone()


def _centres(X: Float[Tensor, "n d"], count: int, seed: int) -> Float[Tensor, "p d"]:
    """Return k-means centres of at most 20,000 rows; the distinct rows if there are no more."""
    if len(X) == 0:
        raise InvalidDataError(
            "train_X: it has no rows from which to choose interpolation points. Pass interpolation_points."
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = X[torch.randperm(len(X), generator=generator)[:KMEANS_ROWS].to(X.device)].unique(dim=0)
    if len(chosen) <= count:
        return chosen
    start = chosen[torch.randperm(len(chosen), generator=generator)[:count].to(X.device)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="One of the clusters is empty")  # its centre stays where it was
        centres, _ = kmeans2(chosen.cpu().numpy(), start.cpu().numpy(), iter=KMEANS_ROUNDS, minit="matrix")
    return torch.from_numpy(centres).to(X)
