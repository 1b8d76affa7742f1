"""What a saved model consists of; that it goes on to the last bit is a law, in `test_laws`."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import data
from torch import Tensor

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, GRIEFBayes, SoftKI, WISKIClassifier
from bo_scale.errors import InvalidDataError, WrongTypeError
from bo_scale.models.shell.storage import (
    FORMAT,
    load_model,
    model_content,
    restore_model,
    save_model,
    write_atomically,
)

X, Y = data(12, 2)
Z = data(4, 2, seed=3)[0]


def model(n: int = 12, **options: Any) -> WISKI:
    return WISKI(X[:n], Y[:n], **{"grid_size": 7, **options}).eval()


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and is_plain(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(each) for each in value)
    return value is None or isinstance(value, Tensor | int | float | str | bool)


@pytest.mark.parametrize("keep_data", [True, False])
def test_content_is_plain_and_its_own(keep_data: bool) -> None:
    of = model(keep_data=keep_data)
    before, content = of.posterior(Z).mean, model_content(of)
    assert is_plain(content)
    assert (content["format"], content["class"]) == (FORMAT, "WISKI")
    assert (content["rows"] is None) != keep_data
    other = restore_model(model(5, keep_data=keep_data), model_content(of))
    for value in (*content["state"].values(), *(content["rows"] or [])):
        if value.is_floating_point():
            value.zero_()
    assert torch.equal(of.posterior(Z).mean, before)
    assert torch.equal(other.posterior(Z).mean, before)
    assert not other.training
    assert other.num_observations == 12


@pytest.mark.parametrize(
    ("changed", "found"), [({"format": FORMAT - 1}, f"WISKI, format {FORMAT - 1}"), ({"class": "GRIEF"}, "GRIEF")]
)
def test_another_class_or_format_is_refused_with_what_was_found(changed: dict[str, Any], found: str) -> None:
    of = model()
    before = of.posterior(Z).mean
    with pytest.raises(InvalidDataError, match=f"content: holds {found}.*expected WISKI, format {FORMAT}"):
        restore_model(of, {**model_content(of), **changed})
    assert torch.equal(of.posterior(Z).mean, before)


def test_a_file_of_another_model_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_model(model(), path)
    with pytest.raises(InvalidDataError, match=r"model.pt: holds WISKI.*expected SoftKI"):
        load_model(SoftKI(X, Y, num_interpolation_points=5, epochs=1, progress=False), path)
    save_model(load_model(model(3), path), tmp_path / "again.pt")
    one, other = (torch.load(each, weights_only=True) for each in (path, tmp_path / "again.pt"))
    assert one.keys() == other.keys()
    assert torch.equal(one["rows"][1], other["rows"][1])


OPTIONS = [
    (WISKI, {"grid_size": 7, "decay": 0.9}, {"grid_size": 7}, "decay is 0.9 in the saved model and 1.0 in this one"),
    (WISKI, {"grid_size": 7}, {"grid_size": 7, "conservative": True}, "conservative is False .* and True"),
    (WISKI, {"grid_size": 7, "missing_variance": "few"}, {"grid_size": 7}, "missing_variance is 'few' .* and False"),
    (WISKI, {"grid_size": 7, "rank": 20}, {"grid_size": 7, "rank": 10}, "rank is 20 .* and 10"),
    (WISKI, {}, {"grid_size": 7}, "grid_size is None .* and 'any size'"),
    (GRIEF, {"num_eigenfunctions": 6}, {"num_eigenfunctions": 8}, "num_eigenfunctions is 6 .* and 8"),
    (GRIEF, {"grid_points": 4}, {"grid_points": 5}, "grid_points is 4 .* and 5"),
    (GRIEF, {"weights": "type2"}, {}, "weights is 'type2' .* and 'nystrom'"),
    (GRIEFBayes, {"num_samples": 4}, {"num_samples": 5}, "num_samples is 4 .* and 5"),
    (SoftKI, {"missing_variance": True}, {}, "missing_variance is True .* and False"),
    (CaGP, {"policy": "cg"}, {}, "policy is 'cg' .* and 'learned'"),
    (CaGP, {"num_actions": 4}, {"num_actions": 5}, "num_actions is 4 .* and 5"),
    (DecoupledGP, {"parameterization": "hybrid"}, {}, "parameterization is 'hybrid' .* and 'direct'"),
    (DecoupledGP, {"num_mean_inducing": 6}, {"num_mean_inducing": 7}, "num_mean_inducing is 6 .* and 7"),
    (DecoupledGP, {"num_covar_inducing": 4}, {"num_covar_inducing": 5}, "num_covar_inducing is 4 .* and 5"),
]


@pytest.mark.parametrize(("kind", "saved", "own", "message"), OPTIONS, ids=lambda each: getattr(each, "__name__", ""))
def test_other_options_are_refused_with_both_values_and_change_nothing(
    kind: Any, saved: dict[str, Any], own: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, of = tmp_path / "model.pt", kind(X[:9], Y[:9], **own).eval()
    save_model(kind(X, Y, **saved).eval(), path)
    before = of.posterior(Z).mean
    with pytest.raises(InvalidDataError, match=f"model.pt: {message}"):
        load_model(of, path)
    assert of.num_observations == 9
    assert torch.equal(of.posterior(Z).mean, before)
    assert load_model(kind(X[:9], Y[:9], **saved), path).num_observations == 12


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: WISKI(X[:, :1], Y, grid_size=7), "number of inputs is 2 .* and 1"),
        (lambda: WISKI(X, Y.repeat(1, 3), grid_size=7), "number of outputs is 1 .* and 3"),
        (lambda: WISKI(X, Y, torch.ones_like(Y), grid_size=7), r"other hyperparameters .*kernel.*likelihood"),
    ],
)
def test_other_data_and_hyperparameters_are_refused(other: Any, message: str) -> None:
    with pytest.raises(InvalidDataError, match=f"(?s)content: .*{message}"):
        restore_model(other(), model_content(model()))


@pytest.mark.parametrize(
    ("kind", "saved", "own", "message"),
    [
        (GRIEF, {"num_eigenfunctions": 6}, {"num_eigenfunctions": 8}, "num_eigenfunctions is 6 .* and 8"),
        (GRIEFBayes, {"num_samples": 4}, {"num_samples": 5}, "num_samples is 4 .* and 5"),
        (CaGP, {"num_actions": 4}, {"num_actions": 5, "policy": "cg"}, "number of actions is 4 .* and 5"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_files_without_options_are_refused_by_their_sizes(
    kind: Any, saved: dict[str, Any], own: dict[str, Any], message: str
) -> None:
    content = model_content(kind(X, Y, **saved).eval())
    del content["options"]
    with pytest.raises(InvalidDataError, match=f"content: .*{message}"):
        restore_model(kind(X, Y, **own), content)
    again = restore_model(kind(X, Y, **saved), content)
    assert torch.equal(again.posterior(Z).mean, kind(X, Y, **saved).eval().posterior(Z).mean)


def test_a_prior_of_another_rank_is_refused_without_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bo_scale.gp.weight_space.features.grid.features.DENSE_ROOT", 0)
    content = model_content(model(rank=5))
    del content["options"]
    with pytest.raises(InvalidDataError, match=r"content: rank of the prior is 5 .* and 20 .*the kernel"):
        restore_model(model(rank=20), content)


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    path, classifier = tmp_path / "model.pt", WISKIClassifier(X, (Y[:, 0] > 0).long(), grid_size=7)
    with pytest.raises(WrongTypeError, match=r"model: expected a model, got the class WISKI\. Construct one"):
        inspect.unwrap(save_model)(WISKI, path)  # without the tests' type checker
    save_model(model(), path)
    with pytest.raises(WrongTypeError, match=r"model: expected a model, got the class WISKI\. Construct one"):
        inspect.unwrap(load_model)(WISKI, path)
    with pytest.raises(WrongTypeError, match=r"got WISKIClassifier\. Pass its `model`"):
        inspect.unwrap(load_model)(classifier, path)
    write_atomically({"a": torch.ones(2)}, path)
    with pytest.raises(InvalidDataError, match=r"model.pt: holds no model that save_model wrote"):
        load_model(model(), path)


def test_tensors_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "values"
    write_atomically({"a": torch.ones(2)}, path)
    with pytest.raises(Exception, match="pickle"):
        write_atomically({"a": lambda: None}, path)
    assert torch.load(path, weights_only=True)["a"].tolist() == [1.0, 1.0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["state", "statistics"])
def test_a_refused_file_leaves_the_model_as_it_was(name: str) -> None:
    saved = model_content(model(8))
    if name == "state":
        saved["state"]["likelihood.noise_covar.raw_noise"] = torch.zeros(3, 7)
    else:
        saved["statistics"][0]["feature_sum"] = torch.zeros(3)
    of = model()
    likelihood, parameters = of.likelihood, list(of.parameters())
    before, values = of.posterior(Z), [p.detach().clone() for p in parameters]
    with pytest.raises(InvalidDataError, match="Construct this model"):
        restore_model(of, saved)
    assert of.likelihood is likelihood
    assert all(new is old and torch.equal(new, value) for new, old, value in zip(of.parameters(), parameters, values))
    assert of.num_observations == 12
    assert torch.equal(of.posterior(Z).mean, before.mean)
    assert torch.equal(of.posterior(Z).variance, before.variance)
