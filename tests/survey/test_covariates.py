"""Surveys with covariates: rasters and columns, told again by nobody."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from bo_scale.cli.program import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping import stand_ins

LEFT, TOP, CELL, COUNT = 400_000.0, 5_610_000.0, 100.0, 60


def write(path: Path, values: np.ndarray, nodata: float | None = None) -> str:
    with rasterio.open(
        path, "w", driver="GTiff", height=COUNT, width=COUNT, count=1, dtype="float32", crs="EPSG:25832",
        nodata=nodata, transform=from_origin(LEFT, TOP, CELL, CELL),
    ) as file:  # fmt: skip
        file.write(values.astype(np.float32), 1)
    return str(path)


class World:
    """A folder with a table of 40 sites, a raster of heights with a hole, and one of classes."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.folder = folder
        column, row = np.meshgrid(np.arange(COUNT), np.arange(COUNT))
        self.height = 300 + 100 * np.sin(column / 9) + row
        self.soil = (column // 8) % 3
        hole = self.height.copy()
        hole[:12, :12] = -9999
        self.files = [write(folder / "height.tif", hole, -9999), write(folder / "soil.tif", self.soil)]
        at = rng.permutation(COUNT * COUNT)[:40]
        at[0] = 0  # in the hole
        self.row, self.column = np.divmod(at, COUNT)
        self.x, self.y = LEFT + CELL * (self.column + 0.5), TOP - CELL * (self.row + 0.5)
        self.z = 0.05 * self.height[self.row, self.column] + np.array([0, 2, -2])[self.soil[self.row, self.column]]
        self.z = self.z + 0.2 * rng.normal(size=40)
        lines = ["x,y,zinc,deep,kind"] + [
            f"{x},{y},{z:.4f},{self.height[r, c]:.3f},{'abc'[int(self.soil[r, c])]}"
            for x, y, z, r, c in zip(self.x, self.y, self.z, self.row, self.column, strict=True)
        ]
        self.table = folder / "sites.csv"
        self.table.write_text("\n".join(lines))
        self.survey = folder / "s.gpkg"

    def create(self, *covariates: str, **more: object) -> Survey:
        given = {"crs": "EPSG:25832", "kernel": "matern32", "overwrite": True, **more}
        return Survey.create(self.survey, self.table, "zinc", covariates=covariates, **given)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_rasters_make_the_map_and_the_plan(world: World) -> None:
    survey = world.create(world.files[0], world.files[1] + ":categorical")
    assert any("no value of height" in note and "(sites.csv, row 2" in note for note in survey.notes)
    plain = survey.predict(900)
    assert plain.raster.count < 800
    assert any("no value of height" in note for note in plain.notes)
    centres = plain.raster.centres
    row, column = ((TOP - centres[:, 1]) // CELL).astype(int), ((centres[:, 0] - LEFT) // CELL).astype(int)
    truth = 0.05 * world.height[row, column] + np.array([0, 2, -2])[world.soil[row, column]]
    assert np.sqrt(np.mean((plain.mean - truth) ** 2)) < 0.4
    found = Survey(world.survey).coefficients.set_index(["covariate", "class"])
    assert found.lower["height", ""] < 0.05 < found.upper["height", ""]
    slope = write(world.folder / "steep.tif", np.where(np.arange(COUNT) < 30, 40.0, 10.0) + np.zeros((COUNT, COUNT)))
    cost = write(world.folder / "cost.tif", 1 + 1e6 * (np.arange(COUNT) < 45) + np.zeros((COUNT, COUNT)))
    table = survey.plan(4, exclude=[slope + ">30"], progress=False).table
    assert (table.x > LEFT + 30 * CELL).all()
    table = survey.plan(4, cost=cost, progress=False).table
    assert (table.x > LEFT + 45 * CELL).all()
    with pytest.raises(SurveyError, match="cost: only plans without travel"):
        survey.plan(4, "straddle", threshold=10.0, cost=cost)


def test_covariates_can_be_changed_and_rasters_moved(world: World) -> None:
    survey = world.create(world.files[0])
    before = survey.predict_at([402_000.0], [5_606_000.0])
    for text, message in (
        ("hight.tif", "not there"), ("height.tif:class", "none of the kinds"), ("dept", "no number at any"),
        ("kind", "no number at any"), ("file:categorical", "no class at any"),
    ):  # fmt: skip
        with pytest.raises(SurveyError, match=message):
            survey.change_covariates([text])
    assert Survey(world.survey).covariates == ["height"]
    with pytest.raises(SurveyError, match="no such covariate"):
        survey.change_covariates(drop=["hight"])
    (world.folder / "other").mkdir()
    moved = world.survey.rename(world.folder / "other" / "s.gpkg")
    Path(world.files[0]).rename(world.folder / "other" / "height.tif")
    again = Survey(moved)
    assert again.predict_at([402_000.0], [5_606_000.0]).equals(before)
    (world.folder / "other" / "height.tif").unlink()
    with pytest.raises(SurveyError, match="Put it beside the survey"):
        Survey(moved).predict_at([402_000.0], [5_606_000.0])
    again.change_covariates(drop=["height"])
    assert again.settings["fit"] is None
    assert "covariates" not in Survey(moved).settings


def test_columns_are_known_at_sites_candidates_and_where_they_are_given(world: World) -> None:
    survey = world.create("deep", "kind:categorical")
    with pytest.raises(SurveyError, match="columns are known where measurements and candidates are"):
        survey.predict(400)
    with pytest.raises(SurveyError, match="no place has all of them"):
        survey.plan(2)
    given = survey.predict_at(
        [402_000.0, 402_000.0], [5_606_000.0] * 2, covariates={"deep": [350.0, 350.0], "kind": ["B", "c"]}
    )
    assert given["mean"][0] - given["mean"][1] == pytest.approx(4, abs=0.6)
    with pytest.raises(SurveyError, match="depth is none of this survey's"):
        survey.predict_at([402_000.0], [5_606_000.0], covariates={"depth": [350.0]})
    rows = [
        f"{LEFT + CELL * c},{TOP - CELL * r},{world.height[r, c]},{'abc'[int(world.soil[r, c])]}"
        for r in range(0, 60, 4)
        for c in range(0, 60, 4)
    ]
    candidates = world.folder / "places.csv"
    candidates.write_text("\n".join(["x,y,deep,kind", *rows, f"{LEFT + 1010},{TOP - 50},,a"]))
    survey = world.create("deep", "kind:categorical", candidates=candidates)
    plan = survey.plan(3, progress=False)
    assert "Candidate sites left out, without covariates or not allowed: 1." in plan.notes
    assert {"deep", "kind"} <= set(plan.table.columns)
    assert set(plan.table["kind"]) <= set("abc")
    assert survey.predict(400).raster.count > 300
    plan.table.assign(zinc=12.5).to_csv(world.folder / "next.csv", index=False)
    assert survey.update(world.folder / "next.csv").added == 3
    assert not survey.workspace.notes_on_covariates()


def test_the_command_line_shows_and_changes_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["survey", "init", str(world.table), "--value", "zinc", "--crs", "EPSG:25832", "--out", str(world.survey)]
    assert main([*begin, "--covariate", world.files[0], "--covariate", world.files[1], "--kernel", "matern32"]) == 0
    assert "If they are classes, write soil.tif:categorical." in capsys.readouterr().out
    change = ["survey", "model", str(world.survey)]
    assert main([*change, "--covariate", world.files[1] + ":categorical"]) == 0
    out = capsys.readouterr().out
    assert "Covariates: height, soil (categorical)." in out
    assert "differences from the mean of all classes" in out
    assert main([*change, "--drop", "height", "--drop", "soil"]) == 0
    assert "Covariates: none." in capsys.readouterr().out
    assert main([*change, "--drop", "soil"]) == 1
    assert "there is no such covariate" in capsys.readouterr().err


def test_counts_take_covariates(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_ins, "TURNS", 2)
    lines = world.table.read_text().splitlines()
    rng = np.random.default_rng(0)
    share = 1 / (1 + np.exp(-(world.height[world.row, world.column] - 330) / 40))
    cases = rng.binomial(30, share)
    table = world.folder / "counts.csv"
    rows = [f"{line},{k},30" for line, k in zip(lines[1:], cases, strict=True)]
    table.write_text("\n".join([lines[0] + ",positive,examined", *rows]))
    given = {"crs": "EPSG:25832", "kernel": "matern32", "covariates": ["deep"]}
    counted = Survey.create(world.folder / "c.gpkg", table, "positive", of="examined", **given)
    low, high = counted.predict_at([402_000.0] * 2, [5_606_000.0] * 2, covariates={"deep": [250.0, 410.0]})["mean"]
    assert low < 0.35
    assert high > 0.65
    assert counted.coefficients.lower[0] > 0


def test_reports_tables_and_networks_use_covariates(world: World) -> None:
    survey = world.create("deep", world.files[0])
    places = world.folder / "there.csv"
    places.write_text("x,y,deep\n402000,5606000,350\n402500,5606000,\n403000,5606000,330\n")
    found = survey.predict_table(places)
    assert found.table.predicted.isna().tolist() == [False, True, False]
    assert any("because they lack deep, height: 1 (row 3)" in note for note in found.notes)
    at = survey.predict_at([402_000.0], [5_606_000.0], covariates={"deep": [350.0]})
    assert found.table.predicted[0] == pytest.approx(at["mean"][0], rel=1e-4)
    world.create(world.files[0], world.files[1] + ":categorical")
    survey = Survey(world.survey)
    scores = survey.report(progress=False).scores
    assert scores[0].rmse < 0.6
    removed = survey.removable(2, progress=False).table
    assert len(removed) == 2
    assert not (removed.row == 2).any()  # that one is not used
