"""Plans for teams that travel, from a table to routes."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import geopandas as gpd
import gpxpy
import numpy as np
import pandas as pd
import pytest
import shapely

from bo_scale.cli import main
from bo_scale.cli.survey.plan import MISSED
from bo_scale.errors import SurveyError
from bo_scale.survey import Depot, Survey, Travel
from bo_scale.survey import survey as module
from bo_scale.survey.plan import problem
from bo_scale.survey.plan import teams as expedition
from bo_scale.survey.routes import orienteering

CENTRE = Depot(500_500.0, 5_000_400.0, "base")
LAKE = shapely.box(500_550, 5_000_100, 500_650, 5_000_800)
"""From the top of the area down to a passage of 100 m."""


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "CANDIDATES", 150)
        patch.setattr(problem, "CELLS", 300)
        patch.setattr(expedition, "REACHED", 60)
        patch.setattr(orienteering, "RESTARTS", 1)
        patch.setattr(module, "MAP_CELLS", 400)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A square kilometre, by 800 m, with sites in its west; and the same with candidate sites."""
    folder = tmp_path_factory.mktemp("travel")
    rng = np.random.default_rng(0)
    x, y = 500_000 + rng.uniform(0, 1000, 20).round(1), 5_000_000 + rng.uniform(0, 800, 20).round(1)
    pb = (10 + 4 * np.sin(x / 150) + 3 * np.cos(y / 170) + 0.1 * rng.normal(size=20)).round(3)
    pd.DataFrame({"x": x, "y": y, "pb": pb}).to_csv(folder / "sites.csv", index=False)
    shape(folder / "area.geojson", shapely.box(500_000, 5_000_000, 501_000, 5_000_800))
    shape(folder / "lake.geojson", LAKE)
    wells = pd.DataFrame({"x": 500_050 + 100.0 * np.arange(10), "y": [5_000_100.0, 5_000_700.0] * 5})
    wells.assign(name=[f"W{place}" for place in range(10)]).to_csv(folder / "wells.csv", index=False)
    common: dict[str, Any] = {"area": folder / "area.geojson", "crs": "EPSG:32632", "kernel": "matern32"}
    anywhere = Survey.create(
        folder / "s.gpkg", folder / "sites.csv", "pb", **common, forbidden=[folder / "lake.geojson"]
    )
    anywhere.predict(cells=20)
    wells_only = Survey.create(folder / "w.gpkg", folder / "sites.csv", "pb", **common, candidates=folder / "wells.csv")
    wells_only.predict(cells=20)
    return folder


def shape(path: Path, polygon: shapely.Polygon) -> None:
    gpd.GeoDataFrame(geometry=[polygon], crs=32632).to_file(
        path, driver="GPKG" if path.suffix == ".gpkg" else "GeoJSON"
    )


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in made.iterdir():
        if file.suffix != ".lock":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def metres(line: np.ndarray) -> float:
    return float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum())


def lines(plan: Any) -> list[np.ndarray]:
    return [route.line for route in plan.routes]


def test_the_variance_counts_alike_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Travel([CENTRE], kilometres=1.0)
    plan = Survey("s.gpkg").plan(travel=day)
    monkeypatch.setattr(problem, "roughness", lambda *given: np.linspace(0.1, 9.0, len(given[3])))
    again = Survey("s.gpkg").plan(travel=day)
    np.testing.assert_allclose(again.table[["x", "y"]], plan.table[["x", "y"]])
    assert not any("model expects" in line for line in again.notes)


@pytest.mark.parametrize("one_way", [False, True])
def test_a_day_of_kilometres_is_kept_and_the_route_is_what_it_says(folder: Path, one_way: bool) -> None:
    plan = Survey("s.gpkg").plan(travel=Travel([CENTRE], kilometres=1.2, one_way=one_way))
    (route,) = plan.routes
    assert route.kilometres <= 1.2
    assert route.kilometres == pytest.approx(metres(route.line) / 1000)
    assert route.hours is None
    assert list(plan.table.site) == route.sites == [f"P{place}" for place in range(1, len(route.sites) + 1)]
    assert list(plan.table.stop) == list(range(1, len(route.sites) + 1))
    assert len(route.sites) >= 3
    ends = [[CENTRE.x, CENTRE.y], *plan.table[["x", "y"]].to_numpy(), *([] if one_way else [[CENTRE.x, CENTRE.y]])]
    np.testing.assert_allclose(route.line, ends, atol=0.01)
    assert plan.sd_after < plan.sd_before
    again = Survey("s.gpkg").plan(travel=Travel([CENTRE], kilometres=1.2, one_way=one_way))
    np.testing.assert_allclose(again.routes[0].line, route.line, atol=1e-6)


def test_hours_are_ways_and_work(folder: Path) -> None:
    plan = Survey("s.gpkg").plan(travel=Travel([CENTRE], hours=1.0, speed=3.0, stay=12.0))
    (route,) = plan.routes
    assert route.hours == pytest.approx(metres(route.line) / 3000 + len(route.sites) * 0.2)
    assert 0.75 < route.hours <= 1.0
    assert len(route.sites) <= 4


def test_teams_and_days_share_the_work(folder: Path) -> None:
    corner = Depot(500_900.0, 5_000_050.0, "corner")
    survey = Survey("s.gpkg")
    plan = survey.plan(3, days=2, travel=Travel([CENTRE, corner], kilometres=0.8))
    assert [(route.day, route.team) for route in plan.routes] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [route.name for route in plan.routes][1] == "Day 1, team 2"
    assert all(route.kilometres <= 0.8 and len(route.sites) <= 3 for route in plan.routes)
    assert [tuple(line[0]) for line in lines(plan)] == [(CENTRE.x, CENTRE.y), (corner.x, corner.y)] * 2
    visits = list(zip(plan.table.day, plan.table.team, plan.table.stop, strict=True))
    assert visits == sorted(visits)
    assert list(itertools.chain(*(route.sites for route in plan.routes))) == list(plan.table.site)
    assert len(np.unique(plan.table[["x", "y"]].to_numpy(), axis=0)) == len(plan.table)
    scores = survey.planned.groupby(["team", "day"]).score.sum()
    assert all(scores[team, 1] >= scores[team, 2] for team in (1, 2))
    np.testing.assert_allclose(
        np.concatenate([each.line for each in Survey("s.gpkg").routes]), np.concatenate(lines(plan))
    )


def test_days_without_travel_are_batches_one_after_the_other(folder: Path) -> None:
    survey = Survey("s.gpkg")
    plan = survey.plan(2, days=3)
    assert list(plan.table.day) == [1, 1, 2, 2, 3, 3]
    assert not {"team", "stop"} & set(plan.table.columns)
    assert "day" not in survey.plan(2).table
    assert plan.routes == []


def test_a_partial_day_is_planned_again_from_where_the_team_is(folder: Path) -> None:
    survey = Survey("s.gpkg")
    first = survey.plan(travel=Travel([CENTRE], kilometres=1.0), days=2)
    done = first.table.head(2).assign(pb=[9.0, 8.0])
    done.to_csv("done.csv", index=False)
    assert survey.update("done.csv").matched == ["P1", "P2"]
    assert len(survey.routes) == 2
    here = Depot(*done[["x", "y"]].to_numpy()[1], "here")
    plan = survey.plan(travel=Travel([CENTRE], kilometres=0.5, starts=[here]), days=2)
    np.testing.assert_allclose(plan.routes[0].line[[0, -1]], [[here.x, here.y], [CENTRE.x, CENTRE.y]], atol=0.01)
    np.testing.assert_allclose(plan.routes[1].line[[0, -1]], [[CENTRE.x, CENTRE.y]] * 2, atol=0.01)
    assert [route.sites[0] for route in survey.routes] == [route.sites[0] for route in plan.routes]
    assert set(survey.planned.status) == {"measured", "dropped", "planned"}
    more = survey.plan(1, add=True, travel=Travel([CENTRE], kilometres=0.5))
    assert len(survey.routes) == 3
    assert survey.routes[-1].sites == more.routes[0].sites
    survey.plan(1, add=True)
    assert [depot.name for depot in survey.workspace.depots] == ["base", "here"]


def test_ways_lead_around_what_is_forbidden(folder: Path) -> None:
    east = Depot(500_800.0, 5_000_700.0, "east")
    through = Survey("s.gpkg").plan(travel=Travel([east], kilometres=2.0))
    around = Survey("s.gpkg").plan(travel=Travel([east], kilometres=2.0, around_forbidden=True))
    by_file = Survey("s.gpkg").plan(travel=Travel([east], kilometres=2.0, barriers=["lake.geojson"]))
    inner = LAKE.buffer(-0.1)
    assert shapely.LineString(lines(through)[0]).intersects(inner)
    assert not shapely.LineString(lines(around)[0]).intersects(inner)
    np.testing.assert_allclose(lines(by_file)[0], lines(around)[0], atol=1e-6)
    assert around.routes[0].kilometres == pytest.approx(metres(lines(around)[0]) / 1000)
    assert around.routes[0].kilometres <= 2.0


def test_a_depot_without_ways_is_refused(folder: Path) -> None:
    with pytest.raises(SurveyError, match=r"base: 500600, 5000300 lies inside a barrier"):
        Survey("s.gpkg").plan(
            travel=Travel([Depot(500_600.0, 5_000_300.0, "base")], kilometres=2.0, around_forbidden=True)
        )
    here = shapely.Point(CENTRE.x, CENTRE.y)
    shape(Path("wall.geojson"), here.buffer(0.4).difference(here.buffer(0.2)))
    with pytest.raises(
        SurveyError, match=r"base: no place can be reached from 500500, 5000400, because of the barriers"
    ):
        Survey("w.gpkg").plan(travel=Travel([CENTRE], kilometres=2.0, barriers=["wall.geojson"]))
    with pytest.raises(SurveyError, match="no forbidden parts"):
        Survey("w.gpkg").plan(travel=Travel([CENTRE], kilometres=2.0, around_forbidden=True))


def test_teams_go_where_another_cannot(folder: Path) -> None:
    pen = Depot(500_900.0, 5_000_400.0, "pen")
    here = shapely.Point(pen.x, pen.y)
    shape(Path("ring.geojson"), here.buffer(160).difference(here.buffer(150)))
    day = Travel([CENTRE, pen], kilometres=0.8, barriers=["ring.geojson"])
    plan = Survey("w.gpkg").plan(2, travel=day)
    assert [route.team for route in plan.routes] == [1]
    assert "pen: no free site can be reached from here, so no team starts here." in plan.notes
    plan = Survey("s.gpkg").plan(2, travel=day)
    assert [route.team for route in plan.routes] == [1, 2]
    pd.DataFrame({"x": [pen.x], "y": [pen.y], "pb": [9.0]}).to_csv("here.csv", index=False)
    Survey("s.gpkg").update("here.csv")
    plan = Survey("s.gpkg").plan(2, travel=day, clearance=160.0)  # no site is left within the ring
    assert [route.team for route in plan.routes] == [1]
    assert "pen: no free site can be reached from here, so no team starts here." in plan.notes


def test_barriers_far_away_leave_outlines_as_they_are(folder: Path) -> None:
    angle = np.linspace(0, 2 * np.pi, 1201)[:-1]
    ring = np.stack([np.cos(angle), np.sin(angle)], -1) * 20_000 * (1 + 0.2 * (np.arange(1200) % 2))[:, None]
    shape(Path("both.geojson"), LAKE | shapely.Polygon(np.array([700_000.0, 5_000_000.0]) + ring))
    east = Depot(500_800.0, 5_000_700.0, "east")
    plan, alone = (
        Survey("s.gpkg").plan(travel=Travel([east], kilometres=2.0, barriers=[file]))
        for file in ("both.geojson", "lake.geojson")
    )
    assert not any("simplified" in line for line in plan.notes)
    np.testing.assert_allclose(lines(plan)[0], lines(alone)[0], atol=1e-6)


@pytest.mark.parametrize("one_way", [False, True])
def test_a_small_part_of_the_area_is_within_reach(folder: Path, one_way: bool) -> None:
    (route,) = Survey("s.gpkg").plan(travel=Travel([CENTRE], kilometres=0.004, one_way=one_way)).routes
    assert route.kilometres
    assert 0.001 < route.kilometres <= 0.004


def test_of_many_candidates_those_within_reach_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "CANDIDATES", 3)
    west = Depot(500_050.0, 5_000_100.0, "west")
    for seed in range(3):
        plan = Survey("w.gpkg").plan(travel=Travel([west], kilometres=0.41), seed=seed)
        assert set(plan.table.name) == {"W0", "W2"}
        assert plan.notes[0] == (
            "Only 3 of 10 candidate sites were considered, drawn with the seed, those within reach first."
        )


def test_teams_do_not_go_again_where_sites_are_under_way(folder: Path) -> None:
    survey, day = Survey("w.gpkg"), Travel([CENTRE], kilometres=20.0)
    first, second = (set(survey.plan(5, travel=day, add=add).table.name) for add in (False, True))
    assert len(first | second) == 10
    with pytest.raises(SurveyError, match="every place within reach is planned already"):
        survey.plan(1, travel=day, add=True)


def matrix(unit: float = 1.0, without: str = "") -> None:
    """Ways along streets, one of them one way; W9 has none."""
    wells = pd.read_csv("wells.csv")
    xy = np.concatenate([wells[["x", "y"]].to_numpy(), [[CENTRE.x, CENTRE.y]]])
    lengths = unit * np.abs(xy[:, None] - xy).sum(-1) / 1000
    lengths[0, 1:] *= 2
    names = [*wells.name, "base"]
    frame = pd.DataFrame(lengths, names, names)
    frame.loc["W9"] = frame["W9"] = np.nan
    frame.drop(index=without, columns=without, errors="ignore").to_csv("matrix.csv")


def test_a_matrix_says_all_ways(folder: Path) -> None:
    matrix()
    plan = Survey("w.gpkg").plan(travel=Travel([CENTRE], kilometres=2.5, matrix="matrix.csv"))
    known = pd.read_csv("matrix.csv", index_col=0)
    stops = ["base", *plan.table.name, "base"]
    assert plan.routes[0].kilometres == pytest.approx(sum(known.loc[a, b] for a, b in itertools.pairwise(stops)))
    assert plan.routes[0].kilometres <= 2.5
    assert (
        "W9: it cannot be reached."
        in Survey("w.gpkg").plan(9, travel=Travel([CENTRE], kilometres=50.0, matrix="matrix.csv")).left_out
    )
    matrix(12.0)
    timed = Survey("w.gpkg").plan(travel=Travel([CENTRE], hours=1.0, stay=6.0, matrix="matrix.csv", unit="minutes"))
    stops = ["base", *timed.table.name, "base"]
    minutes = sum(12 * known.loc[a, b] + 6 for a, b in itertools.pairwise(stops)) - 6
    assert timed.routes[0].hours == pytest.approx(minutes / 60)
    assert timed.routes[0].kilometres is None
    assert timed.routes[0].cost == f"{minutes / 60:.1f} h"
    assert Survey("w.gpkg").routes[0].cost == timed.routes[0].cost
    matrix(without="W3")
    with pytest.raises(SurveyError, match=r"matrix.csv: names are missing: W3"):
        Survey("w.gpkg").plan(travel=Travel([CENTRE], kilometres=2.0, matrix="matrix.csv"))
    with pytest.raises(SurveyError, match="needs candidate sites with names"):
        Survey("s.gpkg").plan(travel=Travel([CENTRE], kilometres=2.0, matrix="matrix.csv"))


def test_a_site_that_no_other_leads_to_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "roughness", lambda *given: np.ones(len(given[3])))  # as for teams that travel
    matrix()
    lone = pd.read_csv("matrix.csv", index_col=0)
    wanted = [name for name in Survey("w.gpkg").plan(3).table.name if name != "W9"]
    best = wanted[1]  # not the first, which may be worth a tour by itself
    others = lone.index != "base"  # there and back, but not from other sites
    lone.loc[others, best] = lone.loc[best, others] = np.nan
    lone.to_csv("lone.csv")
    plan = Survey("w.gpkg").plan(9, travel=Travel([CENTRE], kilometres=50.0, matrix="lone.csv"))
    if plan.table.name.tolist() != [best]:  # worth a tour by itself
        assert f"{best}: it cannot be reached from the other sites of a tour." in plan.left_out


def test_hours_by_a_matrix_have_its_kilometres(folder: Path) -> None:
    matrix()
    plan = Survey("w.gpkg").plan(travel=Travel([CENTRE], hours=1.0, speed=3.0, matrix="matrix.csv"))
    known, (route,) = pd.read_csv("matrix.csv", index_col=0), plan.routes
    length = sum(known.loc[a, b] for a, b in itertools.pairwise(["base", *plan.table.name, "base"]))
    assert length > 1.1 * metres(route.line) / 1000
    assert route.kilometres == pytest.approx(length)
    assert route.hours == pytest.approx(length / 3)


def test_barriers_of_a_plan_are_drawn(folder: Path) -> None:
    survey = Survey("s.gpkg")
    around = Travel([CENTRE], kilometres=1.5, barriers=["lake.geojson"])
    survey.plan(travel=around)
    shape(Path("lake.geojson"), shapely.box(500_000, 5_000_000, 500_010, 5_000_010))  # it changes meanwhile
    survey = Survey("s.gpkg")
    assert survey.workspace.barriers.equals(LAKE)
    survey.map("m.html")
    drawn = re.search(r'"barriers":\[\[(.*?)\]\]', Path("m.html").read_text())
    assert drawn
    assert "500550.0" in drawn[1]
    survey.plan(1, add=True)
    assert survey.workspace.barriers.equals(LAKE)
    survey.plan(1, add=True, travel=around)
    assert len(shapely.get_parts(survey.workspace.barriers)) == 2
    survey.plan(1)
    assert survey.workspace.barriers.is_empty
    assert survey.workspace.state.barriers is None


def test_a_site_that_does_not_fit_in_the_day_says_what_is_left(folder: Path) -> None:
    plan = Survey("w.gpkg").plan(travel=Travel([CENTRE], kilometres=1.2))
    told = [re.fullmatch(r".* would take (.*) km more, but only (.*) km is left.", one) for one in
            Survey("w.gpkg").plan(travel=Travel([CENTRE], kilometres=1.2)).left_out]  # fmt: skip
    found = [(float(one[1]), float(one[2])) for one in told if one]
    assert found
    left = 1.2 - sum(route.kilometres or 0.0 for route in plan.routes)
    assert all(more > there == pytest.approx(left, rel=0.01) for more, there in found)


def test_what_is_left_out_has_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "roughness", lambda *given: np.ones(len(given[3])))  # as for teams that travel
    survey = Survey("w.gpkg")
    plan = survey.plan(4, travel=Travel([CENTRE], kilometres=0.9))
    best = survey.plan(len(plan.table)).table
    missed = set(best.name) - set(plan.table.name)
    assert missed == {reason.split(":")[0] for reason in plan.left_out}
    for reason in plan.left_out:
        name, why = reason.split(": ")
        place = best.set_index("name").loc[name]
        alone = 2 * math.hypot(place.x - CENTRE.x, place.y - CENTRE.y) / 1000
        assert why.startswith(
            f"visiting it alone takes {alone:.3g} km; " if alone > 0.9 else ("it would take", "the budget allows it")
        )
    wide = survey.plan(1, travel=Travel([CENTRE], kilometres=50.0, teams=2)).left_out
    assert all("the batch is full" in reason for reason in wide)
    anywhere = Survey("s.gpkg").plan(4, travel=Travel([CENTRE], kilometres=0.3)).left_out
    assert anywhere
    assert all(reason.startswith("(") for reason in anywhere)


def test_what_is_beyond_reach_is_refused_and_nothing_changes(folder: Path) -> None:
    survey, before = Survey("s.gpkg"), Path("s.gpkg").read_bytes()
    with pytest.raises(SurveyError, match=r"kilometres=1: no place in the area is within reach of base"):
        survey.plan(travel=Travel([Depot(510_000.0, 5_000_000.0, "base")], kilometres=1.0))
    turned = Depot(CENTRE.y, CENTRE.x, "base")
    for path in ("s.gpkg", "w.gpkg"):
        with pytest.raises(
            SurveyError, match=r"Are the coordinates of base swapped\? Longitude .* first: 500500,5000400\."
        ):
            Survey(path).plan(travel=Travel([turned], kilometres=1.0))
    with pytest.raises(
        SurveyError, match=r"every place within reach is planned already, or too near .* or another depot\.$"
    ):
        survey.plan(travel=Travel([CENTRE], kilometres=0.2), clearance=400.0)
    with pytest.raises(SurveyError, match="repeats: a tour visits each place only once"):
        survey.plan(travel=Travel([CENTRE], kilometres=0.2), repeats=2)
    with pytest.raises(SurveyError, match="1 to 1000 sites"):
        survey.plan(300, days=4)
    assert Path("s.gpkg").read_bytes() == before


def test_a_two_team_day_by_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan s.gpkg --depot base=500500,5000400 --teams 2 --hours 2 --speed 3 --stay 10 --around-forbidden"
    assert main(["survey", *words.split(), *["--out", "n.csv", "--map", "m.html", "--gpx", "r.gpx"]]) == 0
    said = capsys.readouterr().out
    table = pd.read_csv("n.csv")
    assert set(table.team) == {1, 2}
    for team in (1, 2):
        sites = " – ".join(table.site[table.team == team])
        assert f"Day 1, team {team}: {sites}, " in said
    assert "would be chosen if nobody had to travel, but they are not visited:" in said
    tracks = gpxpy.parse(Path("r.gpx").read_text())
    assert [route.name for route in tracks.routes] == ["Day 1, team 1", "Day 1, team 2"]
    assert {point.name for point in tracks.waypoints} == {*table.site, "base"}
    assert "Day 1, team 2" in Path("m.html").read_text()
    plan = json.loads(json.dumps(Survey("s.gpkg").settings["plans"][-1]))
    assert plan["travel"]["depots"] == [{"x": 500500.0, "y": 5000400.0, "name": "base"}]
    assert main(["survey", "plan", "s.gpkg", "--again", "--out", "n.csv", "--gpx", "again.gpx"]) == 0
    assert Path("again.gpx").read_text().count("<rte>") == 2
    table.assign(pb=11.0).to_csv("n.csv", index=False)
    assert main(["survey", "update", "s.gpkg", "n.csv"]) == 0
    assert Survey("s.gpkg").routes == []


@pytest.mark.parametrize("one_way", [False, True])
def test_the_rest_of_a_day_is_written_for_navigation(folder: Path, one_way: bool) -> None:
    survey = Survey("s.gpkg")
    plan = survey.plan(4, travel=Travel([CENTRE], kilometres=1.2, one_way=one_way))
    rest = plan.routes[0].sites[1:-1]
    plan.table.assign(pb=[11.0, *[None] * len(rest), 11.0]).to_csv("n.csv", index=False)
    survey.update("n.csv")
    for words in ("--again", "--add --batch 1"):
        assert main(["survey", "plan", "s.gpkg", *words.split(), "--out", "m.csv", "--gpx", "r.gpx"]) == 0
        file = gpxpy.parse(Path("r.gpx").read_text())
        assert [point.name for point in file.routes[0].points] == ["base", *rest, *["base"] * (not one_way)]
        assert {point.name for point in file.waypoints} == {"base", *survey.pending().site}
        assert len(file.tracks[0].segments[0].points) == len(plan.routes[0].line) - one_way


def test_few_of_many_sites_not_visited_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "plan w.gpkg --depot 500500,5000400 --kilometres 1.2 --out n.csv"
    plan, left = Survey.plan, [f"W{number}: is far." for number in range(MISSED + 2)]
    monkeypatch.setattr(Survey, "plan", lambda *given, **named: replace(plan(*given, **named), left_out=left))
    assert main(["survey", *words.split()]) == 0
    said = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(said) if line.startswith("These sites would be chosen"))
    assert said[first + 1 : first + MISSED + 2] == [*(f"  {reason}" for reason in left[:MISSED]), "  … and 2 more."]
