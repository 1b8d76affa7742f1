from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound

from bo_scale.decisions.by_name import (
    ACQUISITIONS,
    acquisition_kind,
    default_acquisition,
    require_options,
    require_served,
)
from bo_scale.loop import AcquisitionKind, Integer, Optimizer, register_acquisition

CHEAP = {"num_restarts": 1, "raw_samples": 16, "max_steps": 5}


def mine(setting):
    return qUpperConfidenceBound(setting.model, setting.options.get("courage", 2.0), X_pending=setting.pending)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"acquisition='EI': choose one of \['qUCB', 'qLogEI'.*or pass a factory"):
        acquisition_kind("EI")


def test_unknown_options_are_refused_and_those_of_a_factory_are_not() -> None:
    with pytest.raises(ValueError, match=r"acquisition_options: \['restarts'\] are unknown; choose .*num_restarts"):
        require_options(acquisition_kind("qUCB"), {"restarts": 3})
    require_options(acquisition_kind(mine), {"restarts": 3})


@pytest.mark.parametrize("objectives", [1, 3])
def test_the_default_serves(objectives: int) -> None:
    kind = acquisition_kind(default_acquisition(objectives))
    assert kind.serves(objectives, 2, discrete=True)


def test_what_is_not_served_is_refused_with_the_names_that_serve() -> None:
    with pytest.raises(
        ValueError, match=r"'qUCB': cannot handle 1 objective and 2 .*choose one of \['qLogEI', 'qLogNEI'\]"
    ):
        require_served(acquisition_kind("qUCB"), 1, 2)
    with pytest.raises(ValueError, match=r"'qKG': needs continuous parameters; choose one of .*'qNIPV', 'Thompson'\]"):
        require_served(acquisition_kind("qKG"), 1, 0, discrete=True)


@pytest.fixture
def _restored_table() -> Iterator[None]:
    before = dict(ACQUISITIONS)
    yield
    ACQUISITIONS.clear()
    ACQUISITIONS.update(before)


@pytest.mark.usefixtures("_restored_table")
def test_one_call_adds_an_acquisition_with_options_of_its_own(tmp_path: Path) -> None:
    kind = AcquisitionKind("mine", mine, "Mine.", discrete=False, options=frozenset({"courage", *CHEAP}))
    register_acquisition(kind)
    register_acquisition(kind)  # twice does nothing more
    loop = Optimizer(
        [(0.0, 1.0)],
        acquisition="mine",
        acquisition_options={"courage": 9.0, **CHEAP},
        model="wiski",
        model_options={"grid_size": 64},
        num_initial=2,
        path=tmp_path,
    )
    loop.tell([[0.1], [0.9]], [1.0, 0.0])
    assert loop.ask(1).shape == (1, 1)
    with pytest.raises(ValueError, match="needs continuous parameters"):
        Optimizer({"n": Integer(1, 8)}, acquisition="mine")
    with pytest.raises(ValueError, match="name='mine': already taken"):
        register_acquisition(replace(kind, make=torch.clone))


@pytest.mark.parametrize("name", list(ACQUISITIONS))
def test_every_name_is_in_the_documentation(name: str) -> None:
    assert ACQUISITIONS[name].name == name
    assert ACQUISITIONS[name].help
    assert f'"{name}"' in str(Optimizer.__doc__)
