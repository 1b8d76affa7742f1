"""Leave-one-out by BoTorch's `loo_cv` is what models of all other rows predict; refused where it would not be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from cases import APPROXIMATE, FUNCTION_SPACE, WEIGHT_SPACE, cagp, data, decoupled, softki
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from bo_scale import WISKI, GRIEFBayes, load_model, save_model
from bo_scale.gp.conditioning import condition

Build = Callable[..., Any]
ADDING = ("WISKI-conservative", "SoftKI-missing", "GRIEF-II-missing")
EXACT = [case for case in WEIGHT_SPACE + FUNCTION_SPACE if case.id not in ADDING]
REFUSED = [case for case in WEIGHT_SPACE if case.id in ADDING] + APPROXIMATE
N, LEFT_OUT = 26, [0, 17]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def rows(n: int, d: int, m: int = 1) -> tuple[Tensor, Tensor]:
    """In units that are not those of the model; two rows are at one place."""
    X, Y = data(n, d, m)
    X[1] = X[0]
    return X, 5 * Y + 2


def shifted(model: Any) -> Any:
    """With hyperparameters that are not those of the constructor."""
    with torch.no_grad():
        for part in (model.covar_module, model.mean_module, model.likelihood):
            for p in part.parameters():
                p += 0.3
    return model.eval()


def spoken(model: Any, noise: bool = True) -> Tensor:
    """Means and variances by `loo_cv`: 2 × n × 1 × m, or 2 × n × S × 1 × 1."""
    posterior = loo_cv(model, observation_noise=noise).posterior
    return torch.stack([posterior.mean, posterior.variance]).detach()


def one_by_one(model: Any, build: Build, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> dict[bool, Tensor]:
    """Means and variances by models of the other rows with the state of all; a known noise is that of the row left out.

    Of some rows, each as left out: 2 × k × 1 × m, with noise and without.
    """
    moments: dict[bool, list[Tensor]] = {True: [], False: []}
    for i in LEFT_OUT:
        others = torch.arange(len(X)) != i
        less = build(X[others], Y[others], train_Yvar=None if Yvar is None else Yvar[others])
        less.load_state_dict(model.state_dict())
        for noise, found in moments.items():
            own = model.likelihood.noise.reshape(Y.shape[-1], -1).mT[i : i + 1] if noise and Yvar is not None else noise
            posterior = less.eval().posterior(X[i : i + 1], observation_noise=own)
            found.append(torch.stack([posterior.mean, posterior.variance]).detach())
    return {noise: torch.stack(found, 1) for noise, found in moments.items()}


SETTINGS = [
    pytest.param(1, False, True, id="learned"),
    pytest.param(2, True, True, id="two outputs, known"),
    pytest.param(2, False, False, id="two outputs, own units"),
]


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize(("m", "known", "transformed"), SETTINGS)
@pytest.mark.parametrize(("d", "build"), EXACT)
def test_it_is_what_models_of_the_other_rows_predict(
    d: int, build: Build, m: int, known: bool, transformed: bool
) -> None:
    X, Y = rows(N, d, m)
    Yvar = 0.1 + 0.2 * Y.abs() if known else None

    def new(*args: Any, **kwargs: Any) -> Any:
        units = {"input_transform": Normalize(d)} if transformed else {"outcome_transform": None}
        return build(*args, **kwargs, **units)

    model = shifted(new(X, Y, train_Yvar=Yvar))
    for noise, expected in one_by_one(model, new, X, Y, Yvar).items():
        said = spoken(model, noise)
        assert said.shape == (2, N, 1, m)
        close(said[:, LEFT_OUT], expected)


# ---------------------------------------------------------------- ensembles


def bayes(X: Tensor, Y: Tensor, **options: Any) -> GRIEFBayes:
    return GRIEFBayes(X, Y, **{"num_eigenfunctions": 24, "grid_points": 6, "num_samples": 5, **options})


def without_each(model: GRIEFBayes) -> Tensor:
    """Predictions of every sample's own GP for each row from the others, the row's noise counted in: 3 × n × S.

    Means, variances and what of these is noise, in transformed units.
    """
    X, Y, D = model._transformed_rows()
    samples = model._samples
    mixture, rho = samples.mixture, torch.ones_like(samples.mixture.variances)
    rho[:, : samples.log_weights.shape[-1]] = samples.log_weights.exp()
    prior = type(mixture)(
        mixture.features, mixture.rotation, 0 * mixture.means, rho, mixture.constant, mixture.log_noise
    )
    noise = mixture.log_noise.exp().unsqueeze(-1) * D[:, 0]
    whole = condition(prior, X, Y[:, 0], noise)
    seen = model.processes[0]  # samples are read off rightly
    torch.testing.assert_close(whole.mean(X), seen.mean(X), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(whole.variance(X), seen.variance(X), rtol=1e-6, atol=1e-8)
    said = []
    for i in range(len(X)):
        others = torch.arange(len(X)) != i
        less = condition(prior, X[others], Y[others, 0], noise[:, others])
        variance = less.variance(X[i : i + 1])[:, 0]
        said.append(torch.stack([less.mean(X[i : i + 1])[:, 0], variance + noise[:, i], noise[:, i]]))
    return torch.stack(said, 1)


@pytest.mark.parametrize("streamed", [0, 4])
@pytest.mark.parametrize("known", [False, True])
def test_an_ensemble_keeps_its_samples(known: bool, streamed: int, tmp_path: Path) -> None:
    X, Y = rows(N, 2)
    Yvar = 0.1 + 0.2 * Y.abs() if known else None
    first = N - streamed
    options = {"input_transform": Normalize(2)}
    model = bayes(X[:first], Y[:first], train_Yvar=None if Yvar is None else Yvar[:first], **options).eval()
    model.posterior(X)
    scale = model.outcome_transform.stdvs.squeeze()
    if streamed:
        noise = None if Yvar is None else Yvar[first:] / scale.square()
        model = model.condition_on_observations(X[first:], Y[first:], noise=noise)
    expected = without_each(model)
    mean = model.outcome_transform.means.squeeze() + scale * expected[0]
    with_noise, without_noise = spoken(model, True), spoken(model, False)
    assert with_noise.shape == (2, N, 5, 1, 1)
    close(with_noise[0, ..., 0, 0], mean)
    close(without_noise[0, ..., 0, 0], mean)
    close(with_noise[1, ..., 0, 0], scale.square() * expected[1])
    close(without_noise[1, ..., 0, 0], scale.square() * (expected[1] - expected[2]))
    save_model(model, tmp_path / "m.pt")
    again = bayes(X, Y, train_Yvar=Yvar, **options)
    close(spoken(load_model(again, tmp_path / "m.pt"), False), without_noise)


def test_an_ensembles_targets_are_taken_back_as_they_are_given() -> None:
    X, Y = rows(N, 2)
    model = bayes(X, Y).eval()
    targets, mean = model.train_targets, model.posterior(X).mean
    assert targets.shape == (5, N)
    assert model.train().train_targets.shape == (N,)
    model.eval().set_train_data(targets=targets)
    close(model.posterior(X).mean, mean)
    model.set_train_data(targets=-targets[0])
    close(model.train_targets, -targets)


# ---------------------------------------------------------------- no leak


NOISE_ONLY = [case for case in EXACT if case.id in ("WISKI-2d", "WISKI-precision-sum", "GRIEF-2d")] + [
    pytest.param(2, lambda X, Y, **kw: softki(X, Y, interpolation_points=X, temperature=0.05, **kw), id="SoftKI"),
    pytest.param(2, lambda X, Y, **kw: cagp(X, Y, num_actions=64, **kw), id="CaGP"),
    pytest.param(2, lambda X, Y, **kw: decoupled(X, Y, num_covar_inducing=64, **kw), id="Decoupled"),
    pytest.param(2, bayes, id="GRIEFBayes"),
]


@pytest.mark.parametrize(("d", "build"), NOISE_ONLY)
def test_of_pure_noise_nothing_is_known(d: int, build: Build) -> None:
    X = data(60, d)[0]
    inside, left_out = [], []
    for seed in range(1, 6):
        Y = torch.randn(60, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        model = build(X, Y)
        model.likelihood.noise = 0.01
        model.eval()
        means = torch.cat([model.posterior_mean(x.unsqueeze(0)) for x in X]).detach()
        for found, mean in ((inside, means), (left_out, spoken(model)[0])):
            found.append(torch.corrcoef(torch.stack([mean.reshape(60, -1).mean(-1), Y[:, 0]]))[0, 1].item())
    assert sum(inside) / 5 > 0.25
    assert sum(left_out) / 5 < min(0.38, sum(inside) / 5)


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(("d", "build"), REFUSED)
def test_models_that_are_more_than_their_prior_and_likelihood_refuse(d: int, build: Build) -> None:
    model = build(*data(20, d)).eval()
    with pytest.raises(UnsupportedError, match=r"add variance to predictions|share 5 actions|variational parameters"):
        loo_cv(model)


def test_it_is_refused_with_the_reason() -> None:
    X, Y = data(20, 2)

    def assert_refused(model: Any, reason: str) -> None:
        for noise in (True, False):
            with pytest.raises(UnsupportedError, match=reason):
                loo_cv(model.eval(), observation_noise=noise)

    kept = softki(X, Y).eval()
    assert_refused(softki(X, Y, keep_data=False), "keep_data=True")
    assert_refused(WISKI(X, Y, grid_size=8, decay=0.9), "decay")
    assert_refused(kept.fantasize(X[:1], SobolQMCNormalSampler(torch.Size([2]))), "fantasies")
    assert_refused(
        kept.condition_on_observations(X[:1], Y[:1], noise=torch.full((1, 1), 0.3).double()),
        "noise variances of their own",
    )
    for build in (cagp, decoupled, bayes):
        model = build(X, Y, **({"num_actions": 32} if build is cagp else {})).eval()
        _ = spoken(model)
        assert_refused(model.fantasize(X[:1], SobolQMCNormalSampler(torch.Size([2]))), "fantasies")
    assert_refused(bayes(X, Y, keep_data=False), "keep_data=True")
    assert_refused(decoupled(X, Y, polish=False), "polish")
    assert_refused(decoupled(X, Y, num_mean_inducing=10), "variational parameters")
    assert_refused(decoupled(X, Y, num_covar_inducing=10), "variational parameters")
    assert_refused(cagp(X, Y, num_actions=19), "share 19 actions")
    assert_refused(cagp(X, Y, num_actions=19, policy="cg"), "share 19 actions")


def test_missing_variance_is_told_by_the_models_of_one_row_less() -> None:
    X, Y = data(22, 2)
    with pytest.raises(UnsupportedError, match="missing_variance"):
        loo_cv(softki(X[:21], Y[:21], missing_variance="few").eval())
    close(spoken(softki(X, Y, missing_variance="few").eval()), spoken(softki(X, Y).eval()))


# ---------------------------------------------------------------- what forward is


@pytest.mark.parametrize(("d", "build"), EXACT)
def test_rows_that_came_later_are_rows(d: int, build: Build) -> None:
    X, Y = rows(20, d)
    options = {"outcome_transform": None, "train_Yvar": 0.1 + 0.1 * Y.abs()}
    whole = build(X, Y, **options).eval()
    options["train_Yvar"] = options["train_Yvar"][:15]
    streamed = build(X[:15], Y[:15], **options)
    streamed.load_state_dict(whole.state_dict())
    streamed = streamed.eval().condition_on_observations(X[15:], Y[15:], noise=0.1 + 0.1 * Y[15:].abs())
    close(spoken(streamed), spoken(whole))


def test_beyond_its_actions_cagp_is_exact_while_later_rows_have_their_own() -> None:
    X, Y = rows(20, 2)
    model = cagp(X[:15], Y[:15], num_actions=15, outcome_transform=None).eval()
    streamed = model.condition_on_observations(X[15:], Y[15:])
    close(spoken(streamed), spoken(cagp(X, Y, num_actions=20, outcome_transform=None).eval()))


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(("d", "build"), EXACT)
def test_forward_in_eval_mode_is_the_prior_and_a_call_the_posterior(d: int, build: Build, m: int) -> None:
    model = build(*data(20, d, m), outcome_transform=None).eval()
    X = data(12, d, seed=1)[0].reshape(2, 3, 2, d)
    prior = model.forward(X)
    outputs = () if m == 1 else (m,)
    assert prior.mean.shape == (2, 3, *outputs, 2)
    torch.testing.assert_close(prior.covariance_matrix[1, 2], model.forward(X[1, 2]).covariance_matrix)
    torch.testing.assert_close(prior.mean, model._constants().reshape(*outputs, 1).expand_as(prior.mean).to(X))
    called, posterior = model(X), model.posterior(X)
    assert torch.equal(called.mean.reshape(2, 3, 2, m), posterior.mean)
    assert torch.equal(called.covariance_matrix, posterior.distribution.covariance_matrix)
    assert (prior.variance > posterior.variance.mT.reshape(prior.mean.shape)).all()


@pytest.mark.parametrize(("d", "build"), [case for case in EXACT if case.id in ("WISKI-2d", "SoftKI-2d", "CaGP-1d")])
def test_it_has_the_slope_of_all_hyperparameters(d: int, build: Build) -> None:
    X, Y = rows(20, d)
    model = build(X, Y, covar_module=ScaleKernel(RBFKernel(ard_num_dims=d)), likelihood=GaussianLikelihood()).eval()
    parts = [model.covar_module, model.mean_module, model.likelihood]
    parameters = [p for part in parts for p in part.parameters()]

    def score() -> Tensor:
        said = loo_cv(model).posterior
        return ((Y.unsqueeze(1) - said.mean).square() / said.variance + said.variance.log()).sum()

    for p, slope in zip(parameters, torch.autograd.grad(score(), parameters), strict=True):
        with torch.no_grad():
            p += 1e-4
            above = score()
            p -= 2e-4
            below = score()
            p += 1e-4
        torch.testing.assert_close(slope.sum(), (above - below) / 2e-4, rtol=1e-4, atol=1e-4)


def test_a_variational_state_of_other_rows_is_not_used() -> None:
    X, Y = rows(20, 2)
    model, other = (decoupled(X[s], Y[s], outcome_transform=None).eval() for s in (slice(5, 20), slice(0, 15)))
    expected = spoken(model)
    model.load_state_dict(other.state_dict())
    close(spoken(model), expected)
