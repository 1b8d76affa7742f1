"""The page of a report in a browser, at the width of a desk and of a phone."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bo_scale.survey import Survey

pytestmark = [pytest.mark.usefixtures("small"), pytest.mark.browser]
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    pytest.importorskip("selenium")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def test_nothing_is_wider_than_the_window_and_nothing_is_refused(path: Path, chromium: Any, tmp_path: Path) -> None:
    Survey(path).report().write(tmp_path / "report.html")
    for name, (width, height) in SIZES.items():
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chromium.get((tmp_path / "report.html").as_uri())
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
        style = "return getComputedStyle(document.querySelector('dl')).display"
        assert chromium.execute_script(style) == "grid"  # the policy lets the page's own style in
        links = chromium.find_elements("css selector", "nav a")
        assert [link.text for link in links][:2] == ["Spatial structure", "Cross-validation"]
        for drawing in chromium.find_elements("css selector", "svg"):
            assert 0 < drawing.size["width"] <= width
        folder = Path(os.environ.get("BO_SCALE_SCREENSHOTS", tmp_path))
        folder.mkdir(parents=True, exist_ok=True)
        assert chromium.save_screenshot(str(folder / f"report-{name}.png"))
    assert chromium.get_log("browser") == []
