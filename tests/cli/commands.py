"""Sites, and commands that run or are refused."""

import numpy as np
import pandas as pd
import pytest

from bo_scale.cli import main


def sites() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    lon, lat = rng.uniform(8.0, 8.1, 24).round(5), rng.uniform(47.0, 47.05, 24).round(5)
    return pd.DataFrame({"lon": lon, "lat": lat, "pb": (20 + 5 * np.sin(60 * lon) + rng.normal(size=24)).round(2)})


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["survey", *" ".join(words).split()]) == 0
    said = capsys.readouterr()
    return said.out


def refused(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(["survey", *words.split()]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("bo-scale: ")
    return said.err
