from pathlib import Path

import pytest
from samples import saved

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.table import read_table


def test_places_far_outside_the_area_of_use_are_refused(tmp_path: Path) -> None:
    rows = ["360000,5650000,1", "361000,5651000,2", "5650000,360000,3"]
    table = read_table(saved(tmp_path, "\n".join(["x,y,v", *rows])), "v", crs="EPSG:25832")
    assert table.frame.value.tolist() == [1.0, 2.0]
    assert "far outside the area of use of ETRS89 / UTM zone 32N (6 to 12" in table.refused[0].reason


def test_a_national_map_beyond_its_zone_is_noted(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "x,y,v\n850000,5650000,1\n500000,5650000,2\n"), "v", crs="EPSG:25832")
    assert len(table.frame) == 2  # Dresden, 14° E, in the zone that all of Germany uses
    assert "1 places lie a little outside the area of use" in " ".join(table.notes)
    assert "area of use" not in " ".join(read_table(saved(tmp_path, "lon,lat,v\n179,-89,1\n"), "v").notes)


def test_a_table_mostly_outside_is_refused_with_the_likely_remedy(tmp_path: Path) -> None:
    path = saved(tmp_path, "x,y,v\n5650000,360000,1\n5651000,361000,2\n")
    with pytest.raises(SurveyError, match=r"They fit if x and y are exchanged: pass --x y --y x"):
        read_table(path, "v", crs="EPSG:25832")
    assert len(read_table(path, "v", x="y", y="x", crs="EPSG:25832").frame) == 2
    with pytest.raises(SurveyError, match="Check --crs"):
        read_table(saved(tmp_path, "lon,lat,v\n-70,-20,1\n"), "v", crs="EPSG:4258")
