import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import shapely
from samples import sites_table, write, write_area

from bo_scale.survey import Survey
from bo_scale.survey.store.arrivals import Arrival

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture
def late(tmp_path: Path) -> Survey:
    """With rows set aside: without a value, without a latitude, with exchanged coordinates, outside, not positive."""
    table = sites_table(12).assign(Nr=[f"W{k:03d}" for k in range(12)]).astype({"zinc": object})
    table.loc[[3, 4, 5], "zinc"] = ""
    table.loc[4, "lat"] = np.nan
    table.loc[5, ["lon", "lat"]] = 50.96, 105.7
    table.loc[6, "lon"] = 5.9
    table.loc[7, "zinc"] = -1
    given = write(tmp_path, "first.csv", table)
    return Survey.create(
        tmp_path / "s.gpkg", given, "zinc", site="Nr", transform="log", kernel="matern32", area=write_area(tmp_path)
    )


def sent(survey: Survey, **values: float) -> Arrival:
    lab = pd.DataFrame({"Nr": list(values), "zinc": list(values.values())})
    return survey.update(write(survey.path.parent, "lab.csv", lab))


def test_a_late_value_is_placed_by_the_row_that_was_set_aside(late: Survey) -> None:
    late.plan(1)
    arrival = sent(late, w003=4.5, W007=5.5)
    assert arrival.notes[-2:] == [
        "row 2: W003 is placed where its row that was set aside lies.",
        "row 3: W007 is placed where its row that was set aside lies.",
    ]
    assert not any("no planned site" in note for note in arrival.notes)
    assert (arrival.added, arrival.rejected) == (2, [])
    assert late.sites.site.tolist()[-2:] == ["W003", "W007"]
    places = sites_table(12).loc[[3, 7], ["lon", "lat"]]
    np.testing.assert_allclose(shapely.get_coordinates(late.sites.geometry.to_numpy())[-2:], places)


def test_a_place_that_cannot_be_used_is_told_instead_of_another_id(late: Survey) -> None:
    arrival = sent(late, W004=4.5, W005=4.5, W006=4.5, W099=4.5)
    assert arrival.added == 0
    rest = "send it with its coordinates"
    assert [reason for _, reason in arrival.rejected] == [
        f"the row of site W004 was set aside (first.csv, row 6: no value in column lat); {rest}",
        f"the row of site W005 was set aside (first.csv, row 7: no value in column zinc); {rest}",
        f"the row of site W006 was set aside (first.csv, row 8: outside the area); {rest}",
        "there is no site W099; did you mean W009?",
    ]
    assert sent(late, W004=4.5).aside == 1


def test_rows_that_earlier_versions_set_aside_have_no_place(late: Survey) -> None:
    state = late.workspace.state
    late._save(replace(state, rejected=state.rejected[["file", "row", "text", "reason"]]))
    assert sent(late, W003=4.5).rejected[0][1].startswith("the row of site W003 was set aside (first.csv, row 5: no ")


def test_the_id_is_kept_as_it_was_written(late: Survey) -> None:
    kept = [json.loads(text) for text in late.workspace.state.rejected["content"] if text]
    assert [one["site"] for one in kept if one.get("place")] == ["W003"]
