from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rasterio
from samples import sites_table, write

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


def test_a_table_of_the_user_is_not_written_over(path: Path) -> None:
    table = write(path.parent, "mine.csv", sites_table())
    before = table.read_bytes()
    with pytest.raises(SurveyError, match=r"mine\.csv: this file exists and is not a table of predictions"):
        Survey(path).export(table)
    assert table.read_bytes() == before
    survey, made = Survey(path), path.parent / "made.csv"
    prediction = survey.predict(cells=50)
    survey.export(made, prediction)
    survey.export(made, prediction)
    assert made.read_text().startswith("longitude,latitude,x,y,mean,sd")


def test_it_is_exported(path: Path, tmp_path: Path) -> None:
    survey = Survey(path)
    prediction = survey.predict(cells=300)
    survey.export(tmp_path / "g.tif", prediction)
    with rasterio.open(tmp_path / "g.tif") as file:
        assert file.crs.to_epsg() == 32631
        bands = file.read()
    wanted = np.stack([prediction.raster.image(v) for v in (prediction.mean, prediction.sd, prediction.exceedance)])
    np.testing.assert_allclose(bands, wanted, rtol=1e-6, atol=1e-37)  # less is not normal in float32
    survey.export(tmp_path / "g.csv", prediction)
    table = pd.read_csv(tmp_path / "g.csv")
    np.testing.assert_allclose(table[["x", "y"]], prediction.raster.centres, atol=0.006)
    np.testing.assert_allclose(table["mean"], prediction.mean, rtol=1e-6)
    with pytest.raises(SurveyError, match=r"ends in \.tif"):
        survey.export(tmp_path / "g.xlsx", prediction)


def test_it_is_drawn(path: Path, tmp_path: Path) -> None:
    survey = Survey(path)
    survey.plan(2)
    prediction = survey.predict(cells=200)
    survey.map(tmp_path / "m.html", prediction, title="Zinc in May")
    page = (tmp_path / "m.html").read_text()
    assert "Zinc in May" in page
    assert "P2" in page
    survey.map(tmp_path / "m.png", prediction)
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(SurveyError, match=r"ends in \.html"):
        survey.map(tmp_path / "m.pdf", prediction)
