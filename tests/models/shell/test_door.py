"""What no model takes: each public method gives the right answer, or an error that names the argument."""

import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models import ModelListGP
from botorch.sampling import SobolQMCNormalSampler
from cases import FUNCTION_SPACE, MODELS, WEIGHT_SPACE, data, rand
from gpytorch.kernels import RBFKernel, ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale import (
    GRIEF,
    CaGP,
    DecoupledGP,
    GRIEFBayes,
    PrincipalAxes,
    SoftKI,
    choose,
    draw_posterior_functions,
    qNegIntegratedPosteriorVariance,
)
from bo_scale.errors import (
    DataWarning,
    GridError,
    InvalidArgumentError,
    InvalidDataError,
    UnsupportedKernelError,
    WrongTypeError,
)
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.door import (
    require_data,
    require_finite,
    require_inputs,
    require_noise,
    require_outputs,
    require_tensors,
    warn_of_dwarfed,
)
from bo_scale.thompson import thompson_batch

INF, NAN = float("inf"), float("nan")
SOME = [WEIGHT_SPACE[1], WEIGHT_SPACE[8], WEIGHT_SPACE[11], *FUNCTION_SPACE[1:3]]
"""One model a family."""
Build = Callable[..., Any]
SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=4)
BATCHES = st.lists(st.integers(1, 3), max_size=2)


def ensemble(X: Tensor, Y: Tensor, **options: Any) -> GRIEFBayes:
    return GRIEFBayes(X, Y, num_eigenfunctions=12, num_samples=4, grid_points=5, **options)


EVERY = [*MODELS, pytest.param(2, ensemble, id="GRIEFBayes")]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---------------------------------------------------------------- the checks


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_is_named_with_its_rows(bad: float) -> None:
    X = rand(9, 2)
    require_finite(X=X, Y=None, nothing=X[:0])
    X[2, 1] = X[5, 0] = bad
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(InvalidDataError, match=r"X: NaN or inf in rows \[2, 5\]; drop them"):
            require_finite(X=X.to(dtype))
    with pytest.raises(InvalidDataError, match=r"X: NaN or inf in rows \[2, 5\]; drop them"):
        require_finite(Y=rand(9, 1), X=X)
    X[:] = bad
    with pytest.raises(InvalidDataError, match=r"X: NaN or inf in rows \[0, 1, 2, 3, 4\]…"):
        require_finite(X=X)


def test_values_whose_squares_overflow_are_named_with_their_rows() -> None:
    """Posteriors of such data were NaN, without a word."""
    Y = rand(9, 1)
    Y[4] = 1e149
    require_finite(Y=Y)
    Y[4] = -torch.finfo(torch.float64).max
    with pytest.raises(InvalidDataError, match=r"Y: values beyond ±1e\+150 in rows \[4\]; drop them"):
        require_finite(Y=Y)
    Y[6] = NAN
    with pytest.raises(InvalidDataError, match=r"Y: NaN or inf in rows \[4, 6\]; drop them"):
        require_finite(Y=Y)


@pytest.mark.parametrize(("dtype", "large", "harmless"), [(torch.float64, -3.4e38, 1e11), (torch.float32, 1e10, 1e3)])
def test_a_value_beside_which_others_lose_their_digits_is_named(dtype: Any, large: float, harmless: float) -> None:
    """The nodata value of a grid made functions that said nothing, with a suspect among many."""
    Y = rand(9, 2).to(dtype)
    Y[3, 1] = harmless
    warn_of_dwarfed(Y=Y, empty=Y[:0])
    Y[4, 1] = large
    with pytest.warns(DataWarning, match=rf"Y: beside {re.escape(f'{large:g}')} in column 1 .*drop its row"):
        warn_of_dwarfed(X=rand(9, 2), Y=Y)
    Y[:, 1] = torch.where(Y[:, 1] > 2, Y[:, 1], 0)
    warn_of_dwarfed(Y=Y)  # nothing is lost where most values are the same
    Y[:, 1] = 1 + torch.finfo(dtype).eps * torch.arange(9)
    Y[0, 1] = 5.0
    warn_of_dwarfed(Y=Y)  # or differ by rounding alone
    Y[:, 1] = 1e-20 * torch.arange(9)
    Y[0, 1] = 1.0
    warn_of_dwarfed(Y=Y)  # or vanish beside a peak


def test_only_tensors_of_floats_pass() -> None:
    require_tensors(X=rand(2, 2), Y=rand(2, 1).float(), nothing=None)
    for values in ([[1.0]], np.ones((2, 2)), 0.1):
        with pytest.raises(WrongTypeError, match=f"Y: expected a tensor, got {type(values).__name__}"):
            require_tensors(Y=values)
    for dtype in (torch.int64, torch.bool, torch.complex128, torch.float16):
        with pytest.raises(InvalidDataError, match=rf"Y: {dtype} is not supported. Pass float64: Y.double\(\)"):
            require_tensors(Y=torch.ones(2, 1).to(dtype))


@given(indices=st.lists(st.integers(-5, 5), max_size=4), m=st.integers(1, 4))
@settings(deadline=None)
def test_outputs_are_counted_as_lists_are(indices: list[int], m: int) -> None:
    try:
        expected: list[int] | None = [list(range(m))[i] for i in indices] or None
    except IndexError:
        expected = None
    if expected is None:
        with pytest.raises(InvalidArgumentError, match="output_indices"):
            require_outputs(indices, m)
    else:
        assert require_outputs(indices, m) == require_outputs(torch.tensor(indices), m) == expected
        assert require_outputs(np.array(indices), m) == expected


@pytest.mark.parametrize("bad", [1, 1.0, [1.0], [True], ["0"], None, torch.tensor([True]), torch.tensor([0.0])])
def test_what_are_no_indices_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="idcs: expected a list of whole numbers"):
        require_outputs(bad, 2, "idcs")


@given(shape=SHAPES, batch=BATCHES, q=st.integers(1, 3))
@settings(deadline=None)
def test_noise_has_a_variance_for_each_value(shape: list[int], batch: list[int], q: int) -> None:
    """It passes only if it can be expanded to the values, and then no output shares another's."""
    noise, values = torch.full(shape, 0.1), [*batch, q, 2]
    try:
        fits = noise.ndim >= 2 and noise.expand(values).shape == torch.Size(values) and shape[-1] == 2
    except RuntimeError:
        fits = False
    if fits:
        require_noise(noise, values, "noise")
    else:
        with pytest.raises(InvalidDataError, match="noise: shape"):
            require_noise(noise, values, "noise")


def test_noise_is_positive_and_finite() -> None:
    noise = torch.full((3, 1), 0.1)
    require_noise(None, (3, 1), "noise")
    require_noise(0 * noise, (3, 1), "noise")
    for bad, zero in ((0 * noise, False), (-noise, True)):
        with pytest.raises(InvalidDataError, match="noise: variances must be positive"):
            require_noise(bad, (3, 1), "noise", zero)
    with pytest.raises(InvalidDataError, match="noise: NaN or inf"):
        require_noise(noise * NAN, (3, 1), "noise")


def test_inputs_are_points() -> None:
    require_inputs(rand(0, 2), 2)
    for X, match in (
        (rand(2), r"Z: shape \(2,\), expected … × q × 2. For one point, pass Z.reshape\(1, 2\)"),
        (rand(3, 1), "Z: 1 columns, expected 2"),
        (rand(3, 2) / 0, "Z: NaN or inf in rows"),
    ):
        with pytest.raises(InvalidDataError, match=match):
            require_inputs(X, 2, "Z")


@pytest.mark.parametrize(("n", "k"), [(5, 6), (6, 5), (5, 1), (1, 5), (0, 5)])
def test_inputs_and_targets_pair(n: int, k: int) -> None:
    with pytest.raises(InvalidDataError, match=f"{n} rows of inputs and {k} of targets"):
        require_data(rand(n, 2), rand(k, 1), None)
    for X, Y, name in ((rand(3, 0), rand(3, 1), "train_X"), (rand(3, 1), rand(3, 0), "train_Y")):
        with pytest.raises(InvalidDataError, match=f"{name}: shape .* has no columns"):
            require_data(X, Y, None)


# ---------------------------------------------------------------- every model


@pytest.mark.parametrize(("d", "build"), EVERY)
def test_no_model_pairs_inputs_with_targets_of_others(d: int, build: Build) -> None:
    X, Y = data(12, d)
    for x, y in ((X[1:], Y), (X, Y[1:]), (X, Y[:1])):
        with pytest.raises(InvalidDataError, match="train_X, train_Y: "):
            build(x, y)
    with pytest.raises(InvalidDataError, match=r"train_Y: torch\.int64"):
        build(X, Y.long())
    with pytest.raises(BotorchTensorDimensionError):
        build(X[:, 0], Y)
    with pytest.raises(BotorchTensorDimensionError):
        build(X, Y, train_Yvar=0.1 + Y[1:].square())


@pytest.mark.parametrize(("d", "build"), EVERY)
def test_no_model_answers_where_it_was_not_asked(d: int, build: Build) -> None:
    """Not at inf, where eigenfunctions vanish, nor for columns that it does not have."""
    X, Y = data(12, d)
    model, sampler = build(X, Y).eval(), SobolQMCNormalSampler(torch.Size([2]), seed=0)
    for bad, match in (
        (torch.cat([X[:2], X[:2] * INF]), r"X: NaN or inf in rows \[2, 3\]"),
        (X * NAN, "X: NaN or inf"),
        (torch.cat([X, X], -1), f"X: {2 * d} columns, expected {d}"),
        (X[0], "X: shape"),
        ((10 * X).long(), "X: torch.int64 is not supported"),
    ):
        for call in (
            lambda bad=bad: model.posterior(bad),
            lambda bad=bad: model.posterior_mean(bad),
            lambda bad=bad: model.condition_on_observations(bad, Y[: len(bad)]),
            lambda bad=bad: model.fantasize(bad, sampler),
        ):
            with pytest.raises(InvalidDataError, match=match):
                call()
    assert model.posterior(X[:0]).mean.shape[-2:] == (0, 1)


@pytest.mark.parametrize(("d", "build"), SOME)
@given(indices=st.lists(st.integers(-4, 4), max_size=3))
@settings(max_examples=12, deadline=None)
def test_an_output_that_is_not_there_is_not_answered_for(d: int, build: Build, indices: list[int]) -> None:
    model = _made(build, d, 2)
    X = rand(3, d, seed=3)
    whole = model.posterior(X)
    if not indices or any(not -2 <= i < 2 for i in indices):
        with pytest.raises(InvalidArgumentError, match="output_indices"):
            model.posterior(X, output_indices=indices)
        with pytest.raises(InvalidArgumentError, match="idcs"):
            model.subset_output(indices)
        return
    part = model.posterior(X, output_indices=indices)
    torch.testing.assert_close(part.mean, whole.mean[:, indices])
    torch.testing.assert_close(part.variance, whole.variance[:, indices])


_MODELS: dict[Any, Any] = {}


def _made(build: Build, d: int, m: int) -> Any:
    if (build, m) not in _MODELS:
        _MODELS[build, m] = build(*data(12, d, m)).eval()
    return _MODELS[build, m]


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(("d", "build"), SOME)
@given(batch=BATCHES, noise=SHAPES, q=st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_given_noise_is_added_to_its_value(
    d: int, build: Build, m: int, batch: list[int], noise: list[int], q: int
) -> None:
    """Or refused: it is never broadcast over outputs, cut, or taken for True."""
    model, X = _made(build, d, m), rand(*batch, q, d, seed=4)
    given_noise = 0.1 + rand(*noise, seed=5)
    try:
        whole = given_noise.expand(*batch, q, m)
        fits = given_noise.ndim >= 2 and given_noise.shape[-1] == m
    except RuntimeError:
        fits = False
    if not fits:
        with pytest.raises(InvalidDataError, match="observation_noise: shape"):
            model.posterior(X, observation_noise=given_noise)
        return
    scale = model.outcome_transform.stdvs.square().squeeze(0)
    added = model.posterior(X, observation_noise=given_noise).variance - model.posterior(X).variance
    torch.testing.assert_close(added, scale * whole)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("d", "build"), EVERY)
def test_noise_that_is_no_variance_is_refused(d: int, build: Build) -> None:
    X, Y = data(12, d)
    model = build(X, Y).eval()
    for bad in (0.1, 1, "yes"):
        with pytest.raises(WrongTypeError, match="observation_noise"):
            model.posterior(X, observation_noise=bad)
    for value, match in ((-0.1, "must be positive"), (NAN, "NaN or inf")):
        noise = torch.full((12, 1), value, dtype=torch.float64)
        with pytest.raises(InvalidDataError, match=f"observation_noise: .*{match}"):
            model.posterior(X, observation_noise=noise)
        with pytest.raises(InvalidDataError, match=f"noise: .*{match}"):
            model.condition_on_observations(X[:4], Y[:4], noise=noise[:4])
    with pytest.raises(InvalidDataError, match="noise: variances must be positive"):
        model.condition_on_observations(X[:4], Y[:4], noise=torch.zeros(4, 1).double())


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(("d", "build"), SOME)
@given(x=BATCHES, y=SHAPES)
@settings(max_examples=15, deadline=None)
def test_values_are_observed_at_their_inputs(d: int, build: Build, m: int, x: list[int], y: list[int]) -> None:
    """Values `f × b × q × m` at inputs `b × q × d`: each batch alone gives the same."""
    model, X, Y = _made(build, d, m), rand(*x, d, seed=6), rand(*y, seed=7)
    try:
        fits = len(x) >= 1 and y[-2:] == [x[-1], m] and len(torch.broadcast_shapes(y[:-2], x[:-1])) >= 0
    except RuntimeError:
        fits = False
    if not fits:
        with pytest.raises(InvalidDataError):
            model.condition_on_observations(X, Y)
        return
    more, Z = model.condition_on_observations(X, Y), rand(2, d, seed=8)
    alone = model.condition_on_observations(X[(0,) * (len(x) - 1)], Y[(0,) * (len(y) - 2)])
    first = more.posterior(Z).mean[(0,) * (max(len(x) + 1, len(y)) - 2)]
    torch.testing.assert_close(first, alone.posterior(Z).mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("d", "build"), SOME)
def test_new_data_must_fit(d: int, build: Build) -> None:
    X, Y = data(12, d, 2)
    model = build(X, Y)
    for arguments, match in (
        ((X[:, :-1], Y.mT), f"inputs: {d - 1} columns, expected {d}"),
        ((X, Y), r"targets: shape \(12, 2\), expected 2 × n"),
        ((X, Y[:, 0]), r"targets: shape \(12,\), expected 2 × n"),
        ((X.expand(3, 12, d), Y.mT), r"inputs: shape \(3, 12, \d\), expected n × d"),
        ((torch.stack([X, 1 - X]), Y.mT), "the same for all outputs"),
        ((X * NAN, Y.mT), "inputs: NaN"),
        ((X, Y.mT * NAN), "targets: NaN"),
    ):
        with pytest.raises(InvalidDataError, match=match):
            model.set_train_data(*arguments, strict=False)
    before = model.eval().posterior(X[:3]).mean
    model.set_train_data(model.train().train_inputs, model.train_targets)
    torch.testing.assert_close(model.eval().posterior(X[:3]).mean, before)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_a_state_that_cannot_be_loaded_leaves_the_model_as_it_was(d: int, build: Build) -> None:
    X, Y = data(12, d)
    model = build(X, Y).eval()
    before = model.posterior(X[:3])
    state = {name: value.clone() for name, value in model.state_dict().items()}
    hyperparameters = dict(model.named_parameters())
    broken = {name: value + 1 if name in hyperparameters else value for name, value in state.items()}
    broken["another"] = torch.zeros(3)
    with pytest.raises(RuntimeError, match="another"):
        model.load_state_dict(broken)
    after = model.posterior(X[:3])
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.variance, before.variance)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_state_of_other_inputs_leaves_every_family_as_it_was() -> None:
    for case in SOME:
        d, build = case.values
        if d > 3:
            continue
        model, other = _made(build, d, 1), build(*data(12, d + 1))
        mean = model.posterior(rand(3, d)).mean
        with pytest.raises((RuntimeError, ValueError)):
            model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model.posterior(rand(3, d)).mean, mean)


@pytest.mark.parametrize("model", [GRIEF, GRIEFBayes, CaGP, DecoupledGP, SoftKI])
def test_a_model_that_needs_rows_says_so(model: Any) -> None:
    with pytest.raises(InvalidDataError, match="train_Y: there are no rows to standardise"):
        model(rand(0, 2), rand(0, 1))
    with pytest.raises(InvalidDataError, match="train_X: it has no rows"):
        model(rand(0, 2), rand(0, 1), outcome_transform=None)


def test_fantasies_take_inputs_of_their_batch() -> None:
    model = _made(SOME[0].values[1], 2, 1).condition_on_observations(rand(3, 2, 2), rand(3, 2, 1))
    with pytest.raises(InvalidDataError, match=r"X: batch shape \(2,\) does not fit the model's fantasies"):
        model.posterior(rand(2, 4, 2))


def test_the_choice_of_a_model_has_the_same_door() -> None:
    X, Y = data(12, 2)
    for arguments, match in (((X.long(), Y), "X: torch.int64"), ((X[:, :0], Y), "each at least 1")):
        with pytest.raises(InvalidDataError, match=match):
            choose(*arguments)


@pytest.mark.parametrize(("d", "build"), SOME)
def test_a_kernel_for_other_inputs_is_refused(d: int, build: Build) -> None:
    X, Y = data(12, d)
    with pytest.raises(
        UnsupportedKernelError, match=rf"RBFKernel has lengthscales for {d + 1} inputs.*ard_num_dims={d}"
    ):
        build(X, Y, covar_module=ScaleKernel(RBFKernel(ard_num_dims=d + 1)))
    part = RBFKernel(ard_num_dims=1, active_dims=(0,))
    if build not in (SOME[0].values[1], SOME[2].values[1]):  # which need a factor for each input
        assert build(X, Y, covar_module=part).eval().posterior(X[:2]).mean.shape == (2, 1)


@pytest.mark.parametrize(("d", "build"), SOME)
def test_other_units_are_positive(d: int, build: Build) -> None:
    model, one = _made(build, d, 1), torch.ones(1, 1, dtype=torch.float64)
    for means, stdvs, match in (
        (one, 0 * one, "stdvs: standard deviations must be positive"),
        (one * NAN, one, "means: shape"),
        (one.expand(1, 2), one.expand(1, 2), "means: shape"),
    ):
        with pytest.raises(InvalidDataError, match=match):
            model.restandardised(means, stdvs)


@pytest.mark.parametrize(("d", "build"), SOME)
def test_integration_points_and_functions_are_of_the_models_inputs(d: int, build: Build) -> None:
    model, X = _made(build, d, 1), rand(4, d, seed=9)
    for points, match in (
        (X[:, :-1], f"mc_points: {d - 1} columns"),
        (X * INF, "mc_points: NaN or inf"),
        (X[:0], "mc_points: there are none"),
        (X.long(), r"mc_points: torch\.int64"),
    ):
        with pytest.raises(InvalidDataError, match=match):
            qNegIntegratedPosteriorVariance(model, points)
    with pytest.raises(InvalidDataError, match="X: NaN or inf"):
        qNegIntegratedPosteriorVariance(model, X)(X.unsqueeze(1) * INF)
    with pytest.raises(InvalidDataError, match="X: NaN or inf"):
        draw_posterior_functions(model, torch.Size([2]))(X * NAN)
    box = torch.stack([torch.zeros(d), torch.ones(d)]).double()
    for bounds in (box.flip(0), box * NAN):
        with pytest.raises(InvalidDataError, match="bounds: expected a finite tensor 2 × d"):
            thompson_batch(model, bounds, 1)


def test_options_without_sense_are_refused() -> None:
    X, Y = data(12, 2)
    with pytest.raises(GridError, match=r"bounds: lower and upper are equal for inputs \[0, 1\], which vary"):
        GRIEF(X, Y, bounds=torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(InvalidDataError, match="X: 2 columns, but the principal axes are of 3 inputs"):
        GRIEF(X, Y, input_transform=PrincipalAxes(rand(9, 3)))


@pytest.mark.parametrize(("d", "build"), SOME)
def test_a_list_of_models_passes_its_own_indices_and_one_noise_for_all(d: int, build: Build) -> None:
    """BoTorch's `ModelListGP` asks its second model, of one output, for output 1."""
    X, Y = data(12, d, 2)
    models = ModelListGP(build(X, Y[:, :1]), build(X, Y[:, 1:])).eval()
    noise = torch.tensor([[0.1, 0.3]]).double().expand(3, 2)
    added = models.posterior(X[:3], observation_noise=noise).variance - models.posterior(X[:3]).variance
    scales = torch.cat([each.outcome_transform.stdvs.square() for each in models.models], -1)
    torch.testing.assert_close(added, scales * noise)
    place, values = rand(1, 1, d), rand(4, 1, 1, 2)
    more = models.condition_on_observations([place, place], values)
    assert [tuple(each.batch_shape) for each in more.models] == [(4, 1), (4, 1)]


@pytest.mark.parametrize(("d", "build"), SOME)
def test_what_botorch_passes_is_taken(d: int, build: Build) -> None:
    model, sampler, X = _made(build, d, 1), SobolQMCNormalSampler(torch.Size([2]), seed=0), rand(3, 1, d)
    assert torch.equal(model.posterior(X, observation_noise=None).variance, model.posterior(X).variance)
    none = model.fantasize(X, sampler, observation_noise=torch.zeros(1, 1).double())
    assert none.posterior(X).variance.max() < 1e-3 * model.posterior(X).variance.max()
    noise = torch.full((3, 1, 1), 0.1).double()
    assert model.condition_on_observations(X, rand(1, 1), noise=noise).batch_shape == (3,)


def test_noise_of_an_ensemble_is_of_its_samples_or_shared_by_them() -> None:
    model, sampler = ensemble(*data(12, 2)).eval(), SobolQMCNormalSampler(torch.Size([2]), seed=0)
    X = rand(3, 1, 2)
    plain = model.posterior(X).variance
    scale = model.outcome_transform.stdvs.square()
    of_samples, of_points = 0.1 + rand(4, 1, 1), 0.1 + rand(3, 1, 1)
    added = model.posterior(X, observation_noise=of_samples).variance - plain
    torch.testing.assert_close(added, (scale * of_samples).expand_as(plain))
    added = model.posterior(X, observation_noise=of_points).variance - plain
    torch.testing.assert_close(added, (scale * of_points.unsqueeze(1)).expand_as(plain))
    assert model.fantasize(X, sampler, observation_noise=of_samples).batch_shape == (2, 3, 4)
    with pytest.raises(InvalidDataError, match=r"observation_noise: shape \(5, 1, 1\)"):
        model.posterior(X, observation_noise=rand(5, 1, 1))


@pytest.mark.parametrize(("d", "build"), SOME)
def test_hooks_survive_a_refused_state(d: int, build: Build) -> None:
    model = build(*data(12, d))
    hook = model.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError):
        model.load_state_dict({"x": torch.ones(1)})
    hook.remove()
    assert len(model._forward_hooks) == 0
    model.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("d", "build"), SOME)
def test_each_output_has_the_prior_at_its_own_inputs(d: int, build: Build, training: bool) -> None:
    model, X = build(*data(12, d, 2)).train(training), rand(2, 3, d)
    every = model.forward(X).covariance_matrix
    for j in range(2):
        one = model.subset_output([j]).train(training).forward(X[j]).covariance_matrix
        torch.testing.assert_close(every[j], one)


@pytest.mark.parametrize(("d", "build"), SOME)
def test_a_transform_of_a_model_that_has_not_predicted_says_so(d: int, build: Build) -> None:
    model, X = build(*data(12, d)).eval(), rand(2, d)
    jacobian = torch.func.jacrev(lambda x: model.posterior(x).mean.sum())
    with suppress(UnsupportedError):  # of any other error the test fails
        jacobian(X)
    model = build(*data(12, d)).eval()
    model.posterior(X)
    assert jacobian(X).shape == X.shape
