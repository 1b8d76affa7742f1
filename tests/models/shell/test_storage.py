"""What a saved model consists of; that it goes on to the last bit is a law, in `test_laws`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import data
from torch import Tensor

from bo_scale import WISKI, SoftKI
from bo_scale.errors import InvalidDataError
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


def test_tensors_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "values"
    write_atomically({"a": torch.ones(2)}, path)
    with pytest.raises(Exception, match="pickle"):
        write_atomically({"a": lambda: None}, path)
    assert torch.load(path, weights_only=True)["a"].tolist() == [1.0, 1.0]
    assert list(tmp_path.iterdir()) == [path]
