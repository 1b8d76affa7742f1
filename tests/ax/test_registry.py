"""Experiments in a file or a database: nothing is lost, and the next trials are by the same model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from ax.api.client import Client
from ax.api.configs import StorageConfig
from ax.exceptions.storage import JSONEncodeError
from botorch.acquisition import qUpperConfidenceBound
from clients import CHEAP, loss, models, run
from gpytorch.kernels import MaternKernel, ScaleKernel
from stores import MOMENTS, NAME, PENDING, experiment, save, statuses, tables

from bo_scale.ax import TRANSFORMS, Automatic, streaming
from bo_scale.ax.surrogates.acquisition import PLUG_IN, StreamingAcquisition
from bo_scale.decisions.acquisition import qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance
from bo_scale.models.catalogue import MODELS
from bo_scale.models.shell.kernels import ProductMaternKernel

pytestmark = [
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore:TypeDecorator JSONEncodedText"),  # of Ax's own columns
]
MORE = 5


@dataclass(frozen=True)
class Store:
    """Where an experiment is kept: a file, or the database of a configuration."""

    path: Path
    config: StorageConfig | None = None

    def loaded(self, made: Client) -> Client:
        """What somebody finds there now."""
        if self.config is not None:
            return Client.load_from_database(NAME, self.config)
        save(made, self.path)
        return Client.load_from_json_file(str(self.path))


@pytest.fixture(params=["json", "sql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "json":
        yield Store(tmp_path / "ax.json")
        return
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy; install bo_scale[sql]")
    from ax.storage.sqa_store.db import session_context

    url = f"sqlite:///{tmp_path / 'ax.db'}"
    with session_context(url=url):  # Ax has one connection a process
        yield Store(tmp_path / "ax.db", tables(url))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """Experiments killed several times, in processes beside the tests."""
    folder = tmp_path_factory.mktemp("killed")
    kinds = [kind for kind in MOMENTS if kind == "json" or find_spec("sqlalchemy")]
    command = [sys.executable, str(Path(__file__).with_name("stores.py")), str(folder), str(MORE), *kinds]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        yield folder, process


@pytest.fixture(scope="module")
def lives(killed: tuple[Path, "subprocess.Popen[str]"]) -> list[dict[str, Any]]:
    folder, process = killed
    output, _ = process.communicate()
    assert process.returncode == 0, (folder / "errors").read_text()
    found = [json.loads(line) for line in output.splitlines()]
    assert all(life["killed"] or life["status"] == 0 for life in found), (folder / "errors").read_text()
    return found


def generator(made: Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the generator that has our model, and of its proposals."""
    spec = made._generation_strategy._nodes[-1].generator_specs[0]
    return spec.generator_kwargs, spec.generator_gen_kwargs


def config_of(made: Client) -> Any:
    return generator(made)[0]["surrogate_spec"].model_configs[0]


# ---------------------------------------------------------------- strategies


@pytest.mark.usefixtures("killed")  # which starts here, and works while the next tests do
@pytest.mark.parametrize("name", [*MODELS, "auto"])
def test_strategies_survive(name: str, store: Store) -> None:
    made = experiment(name, store.config, refit_growth=1.7)
    found = store.loaded(made)
    kwargs, proposals = generator(found)
    config = config_of(found)
    assert config.botorch_model_class is (Automatic if name == "auto" else MODELS[name].model)
    assert config.model_options == {"refit_growth": 1.7, **CHEAP.get(name, {})}
    assert kwargs["transforms"] == TRANSFORMS
    assert kwargs["acquisition_class"] is StreamingAcquisition
    assert kwargs["acquisition_options"][PLUG_IN]
    assert (kwargs, proposals) == generator(made)


@pytest.mark.parametrize(
    "acquisition", [qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance, qUpperConfidenceBound]
)
def test_acquisitions_and_devices_survive(acquisition: Any, store: Store) -> None:
    kwargs, _ = generator(store.loaded(experiment("wiski", store.config, acquisition=acquisition, device="cuda:1")))
    assert kwargs["botorch_acqf_class"] is acquisition
    assert torch.device(kwargs["torch_device"]) == torch.device("cuda:1")


def test_tensors_survive(store: Store) -> None:
    bounds = torch.tensor([[-0.1, 0.0], [1.0, 1.0 + 1e-15]], dtype=torch.float64)
    made = experiment("grief", store.config, bounds=bounds, initialization_budget=2)
    found = store.loaded(made)
    options = config_of(found).model_options
    assert {**options, "bounds": None} == {"refit_growth": 1.25, **CHEAP["grief"], "bounds": None}
    assert options["bounds"].dtype == torch.float64
    assert torch.equal(options["bounds"], bounds)
    run(found, 3)
    assert streaming(found)["loss"].count == 2
    assert torch.equal(config_of(store.loaded(found)).model_options["bounds"], bounds)


def test_a_kernel_of_ours_survives_as_a_class_but_none_as_an_object(store: Store) -> None:
    made = experiment("wiski", initialization_budget=2)
    kernel = {"covar_module_class": ProductMaternKernel, "covar_module_options": {"nu": 1.5, "ard_num_dims": 2}}
    kwargs, _ = generator(made)
    kwargs["surrogate_spec"] = replace(kwargs["surrogate_spec"], model_configs=[replace(config_of(made), **kernel)])
    kept = experiment("wiski", store.config)
    kept.set_generation_strategy(made._generation_strategy)
    found = store.loaded(kept)
    run(found, 3)
    assert type(models(found)[0].covar_module) is ProductMaternKernel
    assert models(found)[0].covar_module.nu == 1.5
    with pytest.raises(JSONEncodeError, match="ScaleKernel"):
        store.loaded(experiment("wiski", store.config, "other", covar_module=ScaleKernel(MaternKernel(ard_num_dims=2))))


# ---------------------------------------------------------------- processes


def test_a_new_process_goes_on_where_this_one_was(tmp_path: Path) -> None:
    made, file = experiment("cagp", initialization_budget=4, refit_growth=3.0, num_actions=32), tmp_path / "ax.json"
    run(made, 5)
    pending = list(made.get_next_trials(max_trials=2))
    made.save_to_json_file(str(file))
    script = Path(__file__).with_name("resume.py")
    done = subprocess.run([sys.executable, str(script), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["refused"] == "Index 'CaGP' is not registered in the reverse registry."
    before, after = (json.loads(path.read_text()) for path in (file, file.with_name("ax.json.again")))
    for snapshot in (before, after):
        del snapshot["generation_strategy"]["had_initialized_model"]
    assert after == before
    assert (found["pending"], found["new"], found["models"]) == (pending, [7, 8], ["CaGP"])
    assert found["nodes"][4:] == ["MBM"] * 7
    stream = found["streams"]["loss"]
    assert (stream["count"], stream["refitted"], stream["streamed"], stream["accumulated"]) == (10, 1, 2, 0)


@pytest.mark.parametrize("kind", ["json", "sql"])
def test_kills_lose_nothing(kind: str, lives: list[dict[str, Any]]) -> None:
    if kind == "sql":
        pytest.importorskip("sqlalchemy", reason="no SQLAlchemy; install bo_scale[sql]")
    mine = [life for life in lives if life["kind"] == kind]
    assert [life["killed"] for life in mine] == [True] * len(MOMENTS[kind]) + [False]
    known, told = set[int](), set[int]()
    for life in mine:
        (_, found), *said = life["said"]
        state = {int(index): status for index, status in found.items()}
        completed = {index for index, status in state.items() if status == "COMPLETED"}
        assert set(state.values()) <= {"COMPLETED", "RUNNING"}
        assert told <= completed
        assert len(completed - told) <= 1  # kept, but killed before it said so
        assert known <= set(state)
        assert len(set(state) - known) <= 1
        known, told = set(state), completed
        for word, *rest in said:
            known |= {rest[0]} if word == "asked" else set()
            told |= {rest[0]} if word == "told" else set()
            assert word != "asked" or rest[0] < 4 or rest[1] == ["WISKI"]
        assert life is mine[-1] or said[-1][0] in ("asking", "telling", "asked", "told")
        assert life is mine[-1] or len(known - told) >= PENDING - 1
    word, stream = mine[-1]["said"][-1]
    assert word == "over"
    assert stream["streamed"] > 0
    assert stream["accumulated"] == 0


def test_what_was_killed_is_whole(killed: tuple[Path, "subprocess.Popen[str]"], lives: list[dict[str, Any]]) -> None:
    """Every trial once, with the value that its point has: Ax keeps ten decimals."""
    folder, _ = killed
    found = {"json": Client.load_from_json_file(str(folder / "ax.json"))}
    if find_spec("sqlalchemy"):
        from ax.storage.sqa_store.db import session_context

        url = f"sqlite:///{folder / 'ax.db'}"
        with session_context(url=url):
            found["sql"] = Client.load_from_database(NAME, StorageConfig(url=url))
    for kind, each in found.items():
        (last,) = [life["said"] for life in lives if life["kind"] == kind and not life["killed"]]
        trials = len(last[0][1]) + MORE
        assert statuses(each) == dict.fromkeys(range(trials), "COMPLETED")
        points = [trial.arm.parameters for trial in each._experiment.trials.values()]
        assert len({tuple(point.values()) for point in points}) == trials
        data = each._experiment.lookup_data().df.sort_values("trial_index")
        assert data["mean"].tolist() == pytest.approx([loss(point) for point in points], rel=0, abs=1e-10)
