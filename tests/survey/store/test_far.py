from pathlib import Path

import pandas as pd
import pytest
from samples import sites_table, write, write_area

from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


def with_places(folder: Path, *places: tuple[float, float]) -> Path:
    table = sites_table(20)
    for place in places:
        table.loc[len(table)] = [*place, 5.0]
    return write(folder, "sites.csv", table)


def test_a_missing_position_and_a_mistyped_digit_are_set_aside(tmp_path: Path) -> None:
    given = with_places(tmp_path, (0.0, 0.0), (7.74, 50.97), (0.0, 0.0))
    survey = Survey.create(tmp_path / "s.gpkg", given, "zinc", kernel="matern32")
    assert survey.sites.row.tolist() == list(range(2, 22))
    reasons = dict(zip(survey.rejected.row, survey.rejected.reason, strict=True))
    assert (
        reasons[22] == reasons[24] == ("the place is 0/0, which looks like a missing position (--outside keep uses it)")
    )
    assert reasons[23] == "the place is 140 km from the others (--outside keep uses it)"
    assert survey.region.area < 1e8  # the hull of the others
    assert survey.update(given).aside == 3  # they are known again
    kept = Survey.create(tmp_path / "k.gpkg", given, "zinc", kernel="matern32", keep_outside=True)
    assert len(kept.sites) == 23
    area = Survey.create(tmp_path / "a.gpkg", given, "zinc", kernel="matern32", area=write_area(tmp_path))
    assert set(area.rejected.reason) == {"outside the area"}


def test_other_parts_of_a_survey_are_not_set_aside(tmp_path: Path) -> None:
    islands = [(7.74, 50.97), (7.75, 50.98), (7.76, 50.97), (7.75, 50.96)]
    survey = Survey.create(tmp_path / "s.gpkg", with_places(tmp_path, *islands), "zinc", kernel="matern32")
    assert len(survey.sites) == 24
    few = write(tmp_path, "few.csv", pd.DataFrame({"lon": [5.7, 5.71, 5.7, 9], "lat": 50.9, "zinc": 1.0}))
    assert len(Survey.create(tmp_path / "f.gpkg", few, "zinc", kernel="matern32").sites) == 4


def test_sites_around_the_antimeridian_are_together(tmp_path: Path) -> None:
    table = sites_table(20)
    table["lon"] = (table.lon + 180 - 5.74 + 180) % 360 - 180
    assert len(Survey.create(tmp_path / "s.gpkg", write(tmp_path, "t.csv", table), "zinc").sites) == 20


def test_the_origin_is_a_place_like_others_where_sites_are_around_it(tmp_path: Path) -> None:
    table = sites_table(20)
    table["lon"], table["lat"] = table.lon - 5.74, table.lat - 50.97
    table.loc[20] = [0.0, 0.0, 5.0]
    assert len(Survey.create(tmp_path / "s.gpkg", write(tmp_path, "t.csv", table), "zinc").sites) == 21
