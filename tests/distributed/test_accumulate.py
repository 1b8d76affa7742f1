"""Models from statistics of shards: equal to one pass, the same to the last bit everywhere, and nothing lost."""

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.models.transforms import Normalize, Standardize
from made_rows import AT, SAMPLE, Evaluated, Made, box, rows_of, same, wiski
from torch import Tensor

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, GRIEFBayes, SoftKI, StudentTNoise
from bo_scale.distributed import Columns, PartialStatistics, accumulate
from bo_scale.errors import InvalidArgumentError, InvalidDataError, WrongTypeError
from bo_scale.loop import Optimizer
from bo_scale.models.errors import UnsupportedError

SHARDS = 5
COLUMNS = Columns(["a", "b"], "y")


MODELS = {
    "WISKI": wiski,
    "in units": lambda: wiski(
        bounds=None, input_transform=Normalize(2, bounds=box()), outcome_transform=Standardize(1)
    ),
    "GRIEF": lambda: GRIEF(*SAMPLE, num_eigenfunctions=30),
    "SoftKI": lambda: SoftKI(*SAMPLE, num_interpolation_points=20, epochs=0),
    "DecoupledGP": lambda: DecoupledGP(*SAMPLE, num_mean_inducing=15, num_covar_inducing=8),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_shards_make_the_model_that_has_observed_all_rows(build: Any) -> None:
    model = build()
    shards = [rows_of(k) for k in range(SHARDS)]
    found = accumulate(model, shards, progress=False)
    assert found.num_observations == 300 * SHARDS
    assert found.rows is None or found.rows.count == 0
    assert model.num_observations == 60
    X, Y = (torch.cat(parts) for parts in zip(*shards, strict=True))
    whole = model.with_statistics(model.statistics_of(X, Y))
    blank = model.with_statistics(model.statistics_of(X[:0], Y[:0]))
    assert blank.num_observations == 0
    streamed = blank.condition_on_observations(X, Y)
    for other in (whole, streamed):
        torch.testing.assert_close(found.posterior(AT).mean, other.posterior(AT).mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.posterior(AT).variance, other.posterior(AT).variance, rtol=1e-8, atol=1e-12)


def test_with_decay_rows_lose_weight_in_the_order_of_the_shards() -> None:
    model, shards = wiski(decay=0.999), [rows_of(k) for k in range(SHARDS)]
    X, Y = (torch.cat(parts) for parts in zip(*shards, strict=True))
    streamed = model.with_statistics(model.statistics_of(X[:0], Y[:0])).condition_on_observations(X, Y)
    found = accumulate(model, shards, progress=False)
    torch.testing.assert_close(found.posterior(AT).mean, streamed.posterior(AT).mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.posterior(AT).variance, streamed.posterior(AT).variance, rtol=1e-8, atol=1e-12)
    a, b, c = (model.statistics_of(*rows) for rows in shards[:3])
    for one, other in zip(((a + b) + c).groups, (a + (b + c)).groups, strict=True):
        torch.testing.assert_close(one.projection, other.projection, rtol=1e-12, atol=1e-12)
    assert not torch.equal((a + b).groups[0].projection, (b + a).groups[0].projection)
    with pytest.raises(InvalidDataError, match="other features"):
        a + wiski().statistics_of(*shards[0])


def test_every_executor_gives_the_same_bits(tmp_path: Path) -> None:
    model, shards = wiski(), [Made(k) for k in range(SHARDS)]
    alone = accumulate(model, shards, progress=False)
    with ThreadPoolExecutor(3) as threads:
        assert same(alone, accumulate(model, shards, executor=threads, progress=False))
    kills = Made(1, tmp_path / "killed")
    again = [shards[0], kills, *shards[2:]]
    assert same(alone, accumulate(model, again, executor=1, progress=False, folder=tmp_path / "sums"))
    assert kills.kills is not None
    assert kills.kills.exists()
    assert len(list((tmp_path / "sums").glob("*.pt"))) == SHARDS
    decoupled = MODELS["DecoupledGP"]()
    alone = accumulate(decoupled, shards, progress=False, folder=tmp_path / "decoupled")
    with ThreadPoolExecutor(3) as threads:
        assert same(alone, accumulate(decoupled, shards, executor=threads, progress=False))
    assert same(alone, accumulate(decoupled, shards, progress=False, folder=tmp_path / "decoupled"))


class Sent:
    """An executor in this process that pickles what it is sent, as pools of processes do, and keeps the task."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.caches: list[set[str]] = []

    def cached(self) -> set[str]:
        return set(vars(self.tasks[-1].task.blank.model._inference))

    def submit(self, function: Any, *arguments: Any) -> Any:
        self.tasks.append(function)
        self.caches.append(self.cached())
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(function))(*arguments))
        return future


def test_what_is_sent_stays_as_it_is_while_results_come() -> None:
    executor = Sent()
    accumulate(wiski(), [rows_of(k) for k in range(SHARDS)], executor=executor, progress=False)
    assert len(executor.tasks) == SHARDS
    assert executor.cached() == executor.caches[0]


def test_processes_that_die_again_and_again_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *given: Any) -> None: ...

        def shutdown(self, **given: Any) -> None: ...

        def submit(self, *given: Any) -> Any:
            raise BrokenProcessPool

    monkeypatch.setattr("bo_scale.distributed.scheduling.ProcessPoolExecutor", Broken)
    with pytest.raises(InvalidArgumentError, match=r"processes died 3 times. A script must .*__main__"):
        accumulate(wiski(), [rows_of(0)], executor=2, progress=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with distributed.LocalCluster(**options) as local, distributed.Client(local) as client:
            yield client


def test_a_cluster_gives_the_same_bits_although_a_worker_is_killed(cluster: Any, tmp_path: Path) -> None:
    model, shards = wiski(), [Made(k) for k in range(SHARDS)]
    shards[2] = Made(2, tmp_path / "killed")
    found = accumulate(model, shards, executor=cluster.get_executor(), progress=False)
    assert (tmp_path / "killed").exists()
    assert same(found, accumulate(model, [Made(k) for k in range(SHARDS)], progress=False))


def test_trials_of_a_cluster_are_all_told_although_a_worker_is_killed(cluster: Any, tmp_path: Path) -> None:
    optimizer = Optimizer(
        {"a": (0.0, 1.0), "b": (0.0, 1.0)}, objective="maximize", num_initial=20, path=tmp_path / "run"
    )
    evaluate = Evaluated(tmp_path / "killed")
    optimizer.run(evaluate, total=8, workers=2, executor=cluster.get_executor(), progress=False)
    assert (tmp_path / "killed").exists()
    assert (optimizer.num_observations, len(optimizer.pending), optimizer.history.attempts) == (8, 0, [])
    X, Y, _ = optimizer.observations
    assert Y.tolist() == Evaluated()(X)


def test_a_second_call_goes_on_from_the_folder(tmp_path: Path) -> None:
    model, calls = wiski(), list[int]()

    def made(number: int) -> tuple[Tensor, Tensor]:
        calls.append(number)
        if number == 3 and calls.count(3) == 1:
            raise OSError("No space left on device")
        return rows_of(number)

    shards = [partial(made, k) for k in range(SHARDS)]
    with pytest.raises(InvalidDataError, match=r"shards: number 3 \(.*\): No space left"):
        accumulate(model, shards, folder=tmp_path, progress=False)
    (tmp_path / "00000001.pt").write_bytes(b"damaged")
    found = accumulate(model, shards, folder=tmp_path, progress=False)
    assert calls == [0, 1, 2, 3, 1, 3, 4]
    assert same(found, accumulate(model, [rows_of(k) for k in range(SHARDS)], progress=False))
    accumulate(wiski(grid_size=12), shards, folder=tmp_path, progress=False)  # of other features
    assert calls[7:] == [0, 1, 2, 3, 4]


def write(path: Path, **columns: Any) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path)
    return path


def test_parquet_files_are_read_by_their_columns(tmp_path: Path) -> None:
    for k in range(SHARDS):
        X, Y = (values.numpy() for values in rows_of(k))
        write(tmp_path / f"part{k}.parquet", y=Y[:, 0].astype(np.float32), b=X[:, 1], a=X[:, 0], text=["x"] * len(X))
    model, expected = wiski(), [(rows_of(k)[0], rows_of(k)[1].float()) for k in range(SHARDS)]
    for given in (tmp_path, str(tmp_path / "*.parquet"), sorted(tmp_path.glob("*"))):
        found = accumulate(model, given, columns=COLUMNS, progress=False, rows=300)
        assert same(found, accumulate(model, expected, progress=False, rows=300))
    assert accumulate(model, tmp_path, columns=COLUMNS, rows=77, progress=False).num_observations == 1500
    files, sums = tmp_path, tmp_path / "sums"
    accumulate(model, files, columns=COLUMNS, folder=sums, progress=False)
    before = {path.name: path.stat().st_mtime_ns for path in sums.iterdir()}
    X, Y = rows_of(7)
    write(files / "part2.parquet", y=Y[:, 0].numpy(), a=X[:, 0].numpy(), b=X[:, 1].numpy())
    accumulate(model, files, columns=COLUMNS, folder=sums, progress=False)
    assert [name for name in before if (sums / name).stat().st_mtime_ns != before[name]] == ["00000002.pt"]


def test_a_shard_that_is_wrong_is_named(tmp_path: Path) -> None:
    X, Y = (values.numpy() for values in rows_of(0))
    good = write(tmp_path / "0.parquet", a=X[:, 0], b=X[:, 1], y=Y[:, 0])
    wrong = Y[:, 0].copy()
    wrong[[120, 299]] = np.nan
    cases = {
        r"number 1 \(.*1.parquet\): Y: NaN or inf in rows \[120, 299\]": {"a": X[:, 0], "b": X[:, 1], "y": wrong},
        "no column b; there are a, y": {"a": X[:, 0], "y": Y[:, 0]},
        "column b holds string, not numbers": {"a": X[:, 0], "b": ["x"] * 300, "y": Y[:, 0]},
    }
    for message, columns in cases.items():
        bad = write(tmp_path / "1.parquet", **columns)
        with pytest.raises(InvalidDataError, match=message):
            accumulate(wiski(), [good, bad], columns=COLUMNS, progress=False)
    (tmp_path / "1.parquet").write_bytes(good.read_bytes()[:-40])
    with pytest.raises(InvalidDataError, match=r"number 1 .*cannot be read as Parquet"):
        accumulate(wiski(), [good, tmp_path / "1.parquet"], columns=COLUMNS, progress=False)
    with pytest.raises(InvalidDataError, match=r"shards: number 0 \(tensors\)"):
        accumulate(wiski(), [(torch.rand(4, 3), torch.rand(4, 1))], progress=False)


def test_what_cannot_be_summed_is_refused() -> None:
    shards = [rows_of(0)]
    with pytest.raises(UnsupportedError, match="CaGP keeps its rows"):
        accumulate(CaGP(*SAMPLE, num_actions=5), shards)
    with pytest.raises(UnsupportedError, match="refit: the sums of a DecoupledGP are those of its kernel"):
        accumulate(MODELS["DecoupledGP"](), shards, refit=True)
    with pytest.raises(UnsupportedError, match="StudentTNoise"):
        wiski(likelihood=StudentTNoise()).statistics_of(*shards[0])
    for none in ([], ()):
        with pytest.raises(InvalidArgumentError, match="there are none"):
            accumulate(wiski(), none)
    with pytest.raises(InvalidArgumentError, match="name the columns"):
        accumulate(wiski(), [__file__])
    with pytest.raises(InvalidArgumentError, match="no such Parquet or Arrow file"):
        accumulate(wiski(), ["nowhere/*.parquet"], columns=COLUMNS)
    with pytest.raises(WrongTypeError, match="shard 0: expected"):
        accumulate(wiski(), [torch.rand(3, 2)])
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        accumulate(wiski(), shards, executor=0)


def test_hyperparameters_are_fitted_to_all_rows_by_their_statistics() -> None:
    model = wiski(outcome_transform=Standardize(1), keep_data=False)
    shards = [rows_of(k) for k in range(SHARDS)]
    Y = torch.cat([Y for _, Y in shards])
    found = accumulate(model, shards, refit=True, progress=False)
    torch.testing.assert_close(found.outcome_transform.stdvs[0], Y.std(0))
    torch.testing.assert_close(found.outcome_transform.means[0], Y.mean(0))
    assert float(found.likelihood.noise) * float(Y.var()) == pytest.approx(0.01, rel=0.15)
    assert found.fit_report is not None


def test_known_noise_and_several_outputs() -> None:
    X, y = rows_of(0)
    Y, noise = torch.cat([y, -2 * y], -1), torch.rand(300, 2, dtype=torch.float64) + 0.1
    model = WISKI(X[:40], Y[:40], noise[:40], grid_size=8, bounds=box(), outcome_transform=None)
    parts = [(X[k : k + 100], Y[k : k + 100], noise[k : k + 100]) for k in (0, 100, 200)]
    found = accumulate(model, parts, progress=False)
    whole = WISKI(X, Y, noise, grid_size=8, bounds=box(), outcome_transform=None)
    whole.load_state_dict({**whole.state_dict(), **dict(model.named_parameters())})
    torch.testing.assert_close(found.posterior(AT).mean, whole.posterior(AT).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.posterior(AT).variance, whole.posterior(AT).variance, rtol=1e-6, atol=1e-9)
    with pytest.raises(InvalidDataError, match="number 0"):
        accumulate(model, [(X, Y)], progress=False)


def _with_another_sum(content: bytes, statistics: PartialStatistics) -> bytes:
    """Turn one bit of a sum in a file."""
    number = statistics.groups[0].square.numpy().tobytes()
    assert content.count(number) == 1
    return content.replace(number, bytes([number[0] ^ 1]) + number[1:])


def test_statistics_are_sent_around(tmp_path: Path) -> None:
    """Three sites add up what they have without showing rows."""
    model = wiski(outcome_transform=Standardize(1))
    sent = []
    for k in range(3):
        model.statistics_of(*rows_of(k)).save(tmp_path / f"site{k}.pt")
        sent.append(PartialStatistics.load(tmp_path / f"site{k}.pt", model))
    found = model.with_statistics(sent[0] + sent[1] + sent[2])
    assert found.num_observations == 900
    torch.testing.assert_close(
        found.posterior(AT).mean, accumulate(model, [rows_of(k) for k in range(3)], progress=False).posterior(AT).mean
    )
    other = wiski(grid_size=12, outcome_transform=Standardize(1))
    with pytest.raises(InvalidDataError, match="other features"):
        sent[0] + other.statistics_of(*rows_of(0))
    with pytest.raises(InvalidDataError, match="other features"):
        other.with_statistics(sent[0])
    with pytest.raises(InvalidDataError, match="other features"):
        PartialStatistics.load(tmp_path / "site0.pt", other)
    content = (tmp_path / "site1.pt").read_bytes()
    for damaged in (content[:500], content[:-700], _with_another_sum(content, sent[1])):
        (tmp_path / "damaged.pt").write_bytes(damaged)
        with pytest.raises(InvalidDataError, match=r"damaged\.pt: is damaged"):
            PartialStatistics.load(tmp_path / "damaged.pt", model)
    torch.save({"a": 1}, tmp_path / "other.pt")
    with pytest.raises(InvalidDataError, match="holds no statistics"):
        PartialStatistics.load(tmp_path / "other.pt", model)


@pytest.mark.parametrize("name", ["WISKI", "GRIEF", "SoftKI"])
def test_a_model_on_a_gpu_gets_sums_of_the_cpu(name: str, gpu: torch.device) -> None:
    here, shards = MODELS[name](), [rows_of(k) for k in range(2)]
    there = MODELS[name]().to(gpu)
    found = accumulate(there, shards, progress=False)
    assert found.statistics[0].center.device == gpu
    expected = accumulate(here, shards, progress=False).posterior(AT)
    torch.testing.assert_close(found.posterior(AT.to(gpu)).mean.cpu(), expected.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        there.statistics_of(*shards[0]).groups[0].square.cpu(), here.statistics_of(*shards[0]).groups[0].square
    )


def test_the_fully_bayesian_model_may_be_made_of_shards() -> None:
    model = GRIEFBayes(*SAMPLE, num_eigenfunctions=20, num_samples=4)
    found = accumulate(model, [rows_of(k) for k in range(2)], progress=False)
    assert found.num_observations == 600
    assert found.posterior(AT).mean.isfinite().all()
