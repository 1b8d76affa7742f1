"""Exact GPs with several kernels, fitted to the same rows and scored by predictions of each from the others."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from bo_scale.errors import BoScaleError
from bo_scale.models.choice.caution import cautious_noise
from bo_scale.models.choice.places import left_out_places, places_of
from bo_scale.models.choice.plan import KERNELS, Plan
from bo_scale.models.choice.report import Score
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.refit import with_hyperparameters

LOOSE = 0.005
"""A fit for the comparison of kernels ends when an iteration gains less log evidence than this."""
MORE = 5.0
"""Log evidence and log density, in nats, by which lengthscales of their own have to be better than a shared one,
Student-t noise than Gaussian noise, and logarithmic scales than plain inputs."""
LENGTHSCALE = "covar_module.base_kernel.raw_lengthscale"
"""Name of the parameter that is the lengthscales of a plan's kernel: no constraint transforms it."""
Data = tuple[Tensor, Tensor, Tensor | None]
"""X `n × d`, Y `n × 1` and Yvar `n × 1`, which is None if the noise is learned."""
FAILURES = (BoScaleError, ModelFittingError, NotPSDError)


@dataclass(frozen=True)
class Fit:
    """A score and the errors of rows that are predicted from all others; none if the fit failed.

    Attributes:
        score: The score, by these rows, each predicted from those with other inputs.
        errors: Their errors `n × 1`, in order, when each is predicted from all others.
        further: Errors `n' × 1` of further rows that are predicted from all of these.
        deviations: Standard deviations of the predictions of `errors`, with Gaussian noise.
        places: Number of these rows that have different inputs.
        density: Mean log density of `errors`.
        inputs: Inputs `n × d` of these rows, in units of the lengthscales, with Gaussian noise.
    """

    score: Score
    errors: Tensor
    further: Tensor = field(default_factory=lambda: torch.empty(0))
    deviations: Tensor = field(default_factory=lambda: torch.empty(0))
    places: int = 0
    density: float = -math.inf
    inputs: Tensor = field(default_factory=lambda: torch.empty(0, 1))

    @property
    def judged(self) -> int:
        """Number of places by which errors are compared."""
        return self.places + len(self.further)

    @property
    def rmse(self) -> float:
        """Root mean squared error at all of them; NaN if the fit failed."""
        total = self.places * self.score.rmse**2 + self.further.square().sum().item()
        return math.sqrt(total / self.judged) if self.judged else math.nan


@dataclass
class KernelFits:
    """Exact GPs by several plans, fitted to the same rows. Only the first on each kind of scales has several starts.

    Later ones start from the first with as many lengthscales and the same scales, and the first with a shared one from
    its kernel's fit with a lengthscale for each input. They are scored by predictions of each row from those with other
    inputs, and their errors for further rows are kept. With `cautious` noise these are made with it, as the chosen
    model will make them. Errors and deviations, by which it is compared with Student-t noise, are without it. Noise
    that is not raised later has BoTorch's least variance.

    Attributes:
        data: The rows.
        others: Further rows, which are predicted from these.
        cautious: Whether predictions are scored with cautious noise.
        start: Hyperparameters from which the first fit with a lengthscale for each input starts.
        made: The fits, by their plans. None is made twice.
        built: Unfitted models, by whether inputs share a lengthscale and whether they have logarithmic scales.
    """

    data: Data
    others: Data | None = None
    cautious: bool = False
    start: Mapping[str, Tensor] | None = None
    made: dict[Plan, Fit] = field(default_factory=dict)
    built: dict[tuple[bool, bool], Any] = field(default_factory=dict)

    def __call__(self, plan: Plan) -> Fit:
        """Return the fit of a plan."""
        if plan not in self.made:
            try:
                self.made[plan] = self._fit(plan)
            except FAILURES as error:
                self.made[plan] = failed_fit(plan, error)
        return self.made[plan]

    def _fit(self, plan: Plan) -> Fit:
        started, first, given = time.perf_counter(), self._first(plan), loose(len(self.data[0]))
        model = self._built(plan)
        exact = ExactGP.of(model)  # which has copies of its modules
        if first is None:
            exact.fit_from_best_start(given)
        else:
            with_hyperparameters(exact.modules, first)
            exact.fit(slice(None), given)
        found, n = parameters_of(exact), len(self.data[0])
        evidence = exact.value_at(exact.state())
        errors, variances = exact.left_out()
        if self.cautious and not exact.known:
            exact.modules.likelihood.noise = cautious_noise(exact, n)
        left = left_out_places(exact)
        score = scored(plan, n, left.errors, left.variances, time.perf_counter() - started, left.dependence)
        further = torch.empty(0) if self.others is None else _errors(model, exact, *self.others)
        score, places = replace(score, evidence=evidence, hyperparameters=found), len(places_of(exact.X)[1])
        density, inputs = gaussian_density(errors, variances).mean().item(), exact.X / found[LENGTHSCALE].flatten()
        return Fit(score, errors, further, variances.sqrt(), places, density, inputs)

    def errors_of(self, fit: Fit, others: Data) -> Tensor:
        """Return the errors of all rows with a fit: its own, left out, and those of others, predicted from them."""
        model = self._built(fit.score.plan)
        exact = ExactGP.of(model)
        with_hyperparameters(exact.modules, fit.score.hyperparameters)
        return torch.cat([fit.errors, _errors(model, exact, *others).to(fit.errors)])

    def _built(self, plan: Plan) -> Any:
        """Return an unfitted model. Models with as many lengthscales and the same scales differ in kernels alone."""
        inputs = plan.shared_lengthscale, plan.log_scales
        model = self.built.get(inputs)
        if model is None:
            model = plan.build(*self.data) if self.cautious else plan.build(*self.data, likelihood=None)
            self.built[inputs] = model
        else:
            model.covar_module = plan.options(self.data[0])["covar_module"]
        return model

    def _first(self, plan: Plan) -> Mapping[str, Tensor] | None:
        """Return the hyperparameters from which a fit starts; None for several starts."""
        if self.start is not None and not plan.shared_lengthscale:
            return self.start
        return first_start(plan, self.made, self.data[0])


def first_start(plan: Plan, made: Mapping[Plan, Fit], X: Tensor) -> Mapping[str, Tensor] | None:
    """Return hyperparameters of the first fit like a plan's but for the kernel.

    That is, with as many lengthscales and the same scales. For a shared lengthscale they may be those of its kernel's
    fit with a lengthscale for each input.

    Args:
        plan: A plan.
        made: Fits of other plans to the same rows. Those that failed are passed over.
        X: Inputs of these rows.

    Returns:
        None if there is no such fit.
    """
    found = {plan: fit.score.hyperparameters for plan, fit in made.items() if not fit.score.failure}
    first = next((each for other, each in found.items() if replace(other, kernel=plan.kernel) == plan), None)
    own = found.get(replace(plan, shared_lengthscale=False))
    return _shared(own, X) if first is None and own is not None and plan.shared_lengthscale else first


def _shared(found: Mapping[str, Tensor], X: Tensor) -> dict[str, Tensor]:
    """Return hyperparameters with a shared lengthscale, in units of the inputs' ranges, instead of one for each input.

    Its inverse square is the mean of theirs, 1/ℓ² = (1/d) Σ_i (r_i/ℓ_i)² with ranges r_i of the inputs: at typical
    distances kernels are alike. If all inputs are constant it is large but finite.

    Args:
        found: Hyperparameters, of which the lengthscales are `1 × d`.
        X: Inputs `n × d`.
    """
    inverse = (X.amax(0) - X.amin(0)) / found[LENGTHSCALE].flatten()
    shared = inverse.square().mean().rsqrt().clamp_max(1 / torch.finfo(X.dtype).eps)
    return {**found, LENGTHSCALE: shared.reshape(1, 1)}


def while_preferred(fit: Callable[[Plan], Fit], plans: list[Plan], best: Fit, rougher: float) -> list[Fit]:
    """Fit a plan with the kernel of the best fit so far, then with rougher and smoother ones, while each is better.

    Of 230 choices for 23 data sets with 50 and 200 rows, one would be another with all of the plans.

    Args:
        fit: Fits a plan.
        plans: Plans from the smoothest kernel to the roughest.
        best: The best fit so far, which the first has to surpass before others are tried.
        rougher: Weight of the preference for rough kernels.
    """
    first = next(i for i, plan in enumerate(plans) if plan.kernel == best.score.plan.kernel)
    fits = [fit(plans[first])]
    for way in (plans[first + 1 :], plans[:first][::-1]):
        top = fits[0]
        for plan in way:
            if best_of([best, *fits], rougher) is not top:
                break
            top = fit(plan)
            fits.append(top)
    return fits


def best_of(fits: list[Fit], rougher: float) -> Fit:
    """Return the preferred fit, the first of equals."""
    return max(fits, key=lambda fit: preference(fit.score, rougher))


def not_clearly_worse(fits: list[Fit]) -> list[Fit]:
    """Return the fits whose error at n places is at most 1 + √(2/n) times the lowest.

    The root mean square of n Gaussian errors has a relative standard error of 1/√(2n), and this is twice as much. A few
    rows that are equal to others can raise the evidence of a rough kernel without noise, which predicts others worse.
    """
    lowest = min((fit.rmse for fit in fits), default=math.nan)
    return [fit for fit in fits if fit.rmse <= (1 + math.sqrt(2 / fit.judged)) * lowest]


def preference(score: Score, rougher: float) -> float:
    """Return the criterion for kernels: evidence and leave-one-out log density for each row, and a prior.

    The leave-one-out log density is equation 5.11 of Rasmussen and Williams (2006), for each row, with all rows that
    have the same inputs left out together.

    Among few rows the smoother kernels of maximal evidence are overconfident: on 23 data sets with 30 rows, 95 %
    intervals of an RBF held 82 %, of a Matérn-1/2 kernel 91 %. So are many lengthscales: with 100 rows a shared one,
    where it is preferred, lowers the mean of the negative log density from 1.02 to .91, at equal error. The prior's
    weight falls as 1/n.
    """
    names, plan = list(KERNELS), score.plan
    rough = names.index(plan.kernel) / (len(names) - 1)
    prior = rougher * rough - MORE * (plan.student_t + plan.log_scales + (not plan.shared_lengthscale))
    return _evidence(score) + prior / max(1, score.rows)


def _evidence(score: Score) -> float:
    return score.log_density + score.evidence


def failed_fit(plan: Plan, error: Exception) -> Fit:
    """Return what stands for a fit that failed."""
    return Fit(Score(plan, failure=f"failed: {error}"), torch.empty(0))


def some_rows(data: Data, rows: Tensor) -> Data:
    """Return some of the rows."""
    X, Y, Yvar = data
    return X[rows], Y[rows], None if Yvar is None else Yvar[rows]


def loose(rows: int) -> dict[str, Any]:
    """Return the optimiser's options of a fit for comparison to some number of rows."""
    return {"options": {"ftol": LOOSE / rows}}


def parameters_of(exact: ExactGP) -> dict[str, Tensor]:
    """Return a copy of the hyperparameters by name."""
    return {name: value.detach().clone() for name, value in exact.modules.named_parameters()}


def _errors(model: Any, exact: ExactGP, X: Tensor, Y: Tensor, _: Tensor | None = None) -> Tensor:
    """Return standardised errors of other rows than those of a model's exact GP."""
    units = model.outcome_transform
    return exact.predicted(model.transform_inputs(X).double(), ((Y - units.means) / units.stdvs).double())[0]


def gaussian_density(errors: Tensor, variances: Tensor) -> Tensor:
    """Return the log density of each error."""
    return -0.5 * (errors.square() / variances + variances.log() + math.log(2 * math.pi))


def scored(plan: Plan, rows: int, errors: Tensor, variances: Tensor, seconds: float, dependence: float = 0.0) -> Score:
    """Score standardised errors by their predicted variances; see `LeftOut` for their dependence."""
    deviations, density = variances.sqrt(), gaussian_density(errors, variances)
    if not density.isfinite().all():
        return Score(plan, rows, seconds=seconds, failure="failed: predictions are not finite")
    return Score(
        plan,
        rows,
        density.mean().item() + dependence,
        errors.square().mean().sqrt().item(),
        (errors.abs() < 1.96 * deviations).double().mean().item(),
        2 * 1.96 * deviations.mean().item(),
        seconds,
    )
