"""Every public method with arguments of any dtype, device and kind: the right answer, or an error that names one.

A tensor on the device "meta" stands for one on another device.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchError
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler
from cases import FUNCTION_SPACE, WEIGHT_SPACE, data, rand
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, GRIEFBayes, SoftKI, choose
from bo_scale.errors import BoScaleError, WrongTypeError

NAN = float("nan")
Model = Any
Build = Callable[..., Model]


def ensemble(X: Tensor, Y: Tensor, **options: Any) -> GRIEFBayes:
    return GRIEFBayes(X, Y, num_eigenfunctions=12, num_samples=4, grid_points=5, **options)


FAMILIES = [
    WEIGHT_SPACE[1],
    WEIGHT_SPACE[8],
    WEIGHT_SPACE[11],
    *FUNCTION_SPACE[1:3],
    pytest.param(2, ensemble, id="GRIEFBayes"),
]
CALLS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "posterior": (("X",), lambda m, a: m.posterior(a["X"])),
    "posterior with noise": (
        ("X", "observation_noise"),
        lambda m, a: m.posterior(a["X"], observation_noise=a["observation_noise"]),
    ),
    "posterior_mean": (("X",), lambda m, a: m.posterior_mean(a["X"])),
    "condition_on_observations": (("X", "Y"), lambda m, a: m.condition_on_observations(a["X"], a["Y"])),
    "condition with noise": (
        ("X", "Y", "noise"),
        lambda m, a: m.condition_on_observations(a["X"], a["Y"], noise=a["noise"]),
    ),
    "fantasize": (("X",), lambda m, a: m.fantasize(a["X"], SobolQMCNormalSampler(torch.Size([2]), seed=0))),
    "get_fantasy_model": (("inputs", "targets"), lambda m, a: m.get_fantasy_model(a["inputs"], a["targets"])),
}
"""Public methods, with the arguments that are given to them."""
SPOILT: dict[str, Callable[[Tensor], Any]] = {
    "float32": lambda t: t.float(),
    "float16": lambda t: t.half(),
    "int64": lambda t: t.long(),
    "bool": lambda t: t > 0,
    "complex128": lambda t: t.to(torch.complex128),
    "another device": lambda t: t.to("meta"),
    "array": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "None": lambda t: None,
    "NaN": lambda t: torch.full_like(t, NAN),
    "inf": lambda t: torch.full_like(t, float("inf")),
    "transposed": lambda t: t.transpose(0, -1).contiguous(),
    "a column less": lambda t: t[..., :-1],
    "a row less": lambda t: t[..., :-1, :] if t.ndim > 1 else t[:-1],
    "flat": lambda t: t.reshape(-1),
    "as it is": lambda t: t,
}
ALIASES = {"inputs": "X", "targets": "Y"}
"""Names of what pairs of arguments are in messages about both."""
OPTIONAL = {"noise", "observation_noise"}
INPUTS: dict[str, Callable[[int], Any]] = {"none": lambda d: None, "Normalize": Normalize}
OUTCOMES: dict[str, Callable[[], Any]] = {"default": lambda: Standardize(1), "none": lambda: None, "Log": Log}
MADE: dict[Any, Model] = {}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def made(build: Build, d: int, inputs: str, outcome: str) -> Model:
    """Return a model of 12 rows, made once: nothing that is refused may change it."""
    key = build, inputs, outcome
    if key not in MADE:
        X, Y = data(12, d)
        MADE[key] = build(
            X, Y.abs() + 0.1, input_transform=INPUTS[inputs](d), outcome_transform=OUTCOMES[outcome]()
        ).eval()
    return MADE[key]


def within(d: int, count: int) -> Tensor:
    """Return points between the rows of the models: a grid may end at these."""
    X, _ = data(12, d)
    return (X[:count] + X[-count:]) / 2


def arguments(d: int) -> dict[str, Tensor]:
    X, Y = within(d, 4), 0.5 + rand(4, 1, seed=5)
    noise = 0.1 + rand(4, 1, seed=6)
    return {"X": X, "Y": Y, "noise": noise, "observation_noise": noise, "inputs": X, "targets": Y.squeeze(-1)}


def numbers(answer: Any, d: int) -> Tensor:
    """Return the numbers of a posterior, of means, or of the predictions of a model."""
    if isinstance(answer, Tensor):
        return answer
    posterior = answer if hasattr(answer, "mean") else answer.posterior(within(d, 2))
    return torch.cat([posterior.mean.double(), posterior.variance.double()], -1)


def attempted(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the error by which it was refused."""
    try:
        return call()
    except (BoScaleError, BotorchError, ValueError, TypeError, RuntimeError) as error:
        return error


@pytest.mark.parametrize(("d", "build"), FAMILIES)
@given(
    call=st.sampled_from(sorted(CALLS)),
    which=st.integers(0, 2),
    how=st.sampled_from(sorted(SPOILT)),
    inputs=st.sampled_from(sorted(INPUTS)),
    outcome=st.sampled_from(sorted(OUTCOMES)),
)
@settings(max_examples=60, deadline=None)
def test_each_method_gives_the_right_answer_or_names_the_argument(
    d: int, build: Build, call: str, which: int, how: str, inputs: str, outcome: str
) -> None:
    names, run = CALLS[call]
    if build is ensemble and call == "posterior_mean":  # of a mixture
        return
    model, good = made(build, d, inputs, outcome), arguments(d)
    name = names[which % len(names)]
    if how == "transposed" and good[name].ndim == 1:
        how = "as it is"
    spoilt = {**good, name: SPOILT[how](good[name])}
    expected = numbers(run(model, good), d)
    found = attempted(lambda: numbers(run(model, spoilt), d))
    if isinstance(found, Exception):
        assert how not in ("as it is", "float32")
        assert any(each in str(found) for each in (*names, *(ALIASES[each] for each in names if each in ALIASES)))
        assert torch.equal(numbers(run(model, good), d), expected)  # nothing has changed
        return
    if how in ("as it is", "float32"):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
    elif how in ("a row less", "flat", "None"):  # fewer points, values without a dimension, or no noise: meant so
        assert name in ("X", "inputs", "targets", *OPTIONAL)
        assert found.isfinite().all()
    else:
        pytest.fail(f"{call}: {name} was taken {how}")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("d", "build"), FAMILIES)
@pytest.mark.parametrize("name", ["train_X", "train_Y", "train_Yvar"])
@given(how=st.sampled_from(["float16", "int64", "bool", "another device", "array", "NaN", "inf", "a row less"]))
@settings(max_examples=8, deadline=None)
def test_no_model_is_made_of_other_data(d: int, build: Build, name: str, how: str) -> None:
    X, Y = data(12, d)
    given_data = {"train_X": X, "train_Y": Y, "train_Yvar": torch.full_like(Y, 0.1)}
    given_data[name] = SPOILT[how](given_data[name])
    X, Y = given_data.pop("train_X"), given_data.pop("train_Y")
    with pytest.raises((BoScaleError, BotorchError, ValueError, TypeError), match=r"train_|X, Y|Yvar|parameter"):
        build(X, Y, **given_data)


@pytest.mark.parametrize(("d", "build"), FAMILIES)
@given(
    place=st.integers(0, 100),
    how=st.sampled_from(["missing", "float32", "a row more", "another device", "text"]),
)
@settings(max_examples=15, deadline=None)
def test_a_state_is_loaded_whole_or_not_at_all(d: int, build: Build, place: int, how: str) -> None:
    model, X = made(build, d, "Normalize", "default"), within(d, 3)
    before, state = numbers(model.posterior(X), d), dict(model.state_dict())
    tensors = [name for name, value in state.items() if isinstance(value, Tensor)]
    name = tensors[place % len(tensors)]
    value = state.pop(name)
    changed = {
        "float32": lambda: value.float() if value.is_floating_point() else value,
        "a row more": lambda: torch.cat([value.reshape(-1), value.reshape(-1), value.new_ones(1)]),
        "another device": lambda: value.to("meta"),
        "text": lambda: "1.0",
    }
    if how != "missing":
        state[name] = changed[how]()
    found = attempted(lambda: model.load_state_dict(state))
    if isinstance(found, Exception):
        assert how != "float32"
        named = name.split(".")[-1] in str(found) or isinstance(found, BoScaleError)
        assert named or how == "another device"  # "meta" has no values to copy, and PyTorch says so alone
    after = numbers(model.posterior(X), d)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
def test_a_choice_is_refused_by_name_too() -> None:
    X, Y = data(8, 2)
    for name, values in (("Y", (X, Y.to("meta"))), ("X", (X.half(), Y))):
        with pytest.raises(BoScaleError, match=name):
            choose(*values)
    with pytest.raises(BoScaleError, match="Y"):
        choose(X, np.asarray(Y))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("model", [WISKI, SoftKI, GRIEF, GRIEFBayes, CaGP, DecoupledGP])
def test_data_that_are_missing_are_named(model: Any) -> None:
    X, Y = data(8, 2)
    for given_data, name in (((None, Y), "train_X"), ((X, None), "train_Y")):
        with pytest.raises(WrongTypeError, match=name):
            model(*given_data)
