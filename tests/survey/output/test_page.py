import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from pictures import CORNER, UTM, field, picture, raster_of, routed
from pyproj import CRS, Transformer

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.coordinates import WGS84, from_metric
from bo_scale.survey.geography.region import make_region
from bo_scale.survey.geography.world import earth
from bo_scale.survey.mapping.prediction import Intervals, Prediction
from bo_scale.survey.output.dates import write_dates
from bo_scale.survey.output.page import write_page
from bo_scale.survey.output.png import Picture

HARM = "<script>alert('harm')</script><img src=x onerror=alert(1)>&{{data}}{{title}}</script>\u2028"


def content(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.fixture
def page(tmp_path: Path) -> Path:
    write_page(picture(), tmp_path / "map.html")
    return tmp_path / "map.html"


def test_a_page_refers_to_nothing_outside_itself(page: Path) -> None:
    text = page.read_text("utf-8")

    code = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    assert not re.findall(r"https?:|//[a-z]|@import|url\(|fetch|XMLHttp|WebSocket|import\(", code)
    assert {layer["image"][:22] for layer in content(page)["layers"]} == {"data:image/png;base64,"}
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,"}
    assert "default-src 'none'" in text
    assert not re.search(r"\{\{\w+\}\}", text)


def test_texts_from_outside_stay_texts(tmp_path: Path) -> None:
    plain = picture()
    predicted = Prediction(plain.prediction.raster, plain.prediction.mean, plain.prediction.sd, quantity=HARM)
    labels = [HARM] * len(plain.labels)
    write_page(picture(prediction=predicted, title=HARM, remarks=[HARM, HARM], labels=labels), tmp_path / "map.html")
    text = (tmp_path / "map.html").read_text("utf-8")

    assert text.count("<script") == 2
    assert "<img" not in text
    assert text.count("&lt;script&gt;alert") == 2
    known = content(tmp_path / "map.html")
    assert known["notes"][0] == HARM
    assert known["notes"].count(HARM) == 1
    assert known["layers"][0]["label"] == HARM
    assert [site["label"] for site in known["proposed"]] == labels


def test_the_values_to_read_are_those_of_the_cells(page: Path) -> None:
    known, shown = content(page), picture()
    raster = shown.prediction.raster
    assert known["readout"] == {"left": raster.left, "top": raster.top, "size": 100.0, "width": 130, "height": 120}
    assert shown.prediction.exceedance is not None
    for layer, values in zip(
        known["layers"], (shown.prediction.mean, shown.prediction.sd, shown.prediction.exceedance)
    ):
        read = np.frombuffer(base64.b64decode(layer["values"]), "<f4").reshape(raster.inside.shape)
        np.testing.assert_allclose(read[raster.inside], values, rtol=1e-6)


def test_a_large_survey_gives_a_small_page(tmp_path: Path) -> None:
    shown = picture(size=11.0, sites=250_000)
    assert shown.prediction.raster.count > 800_000
    write_page(shown, tmp_path / "map.html")
    known = content(tmp_path / "map.html")

    assert (tmp_path / "map.html").stat().st_size < 8e6
    assert len(known["sites"]) == 5000
    assert "Only 5,000 of 250,000 measured sites are drawn." in known["notes"]
    assert known["readout"]["width"] * known["readout"]["height"] <= 200_000
    assert "Values shown for a point are means of 3 × 3 cells." in known["notes"][-1]


def test_a_page_without_sites_batch_or_threshold(tmp_path: Path) -> None:
    shown = picture()
    predicted = Prediction(shown.prediction.raster, shown.prediction.mean, np.zeros(shown.prediction.raster.count))
    none = np.empty((0, 2))
    bare = replace(shown, prediction=predicted, sites=none, values=np.empty(0), proposed=none, labels=[])
    write_page(bare, tmp_path / "map.html")
    known = content(tmp_path / "map.html")

    assert [layer["key"] for layer in known["layers"]] == ["mean", "sd"]
    assert known["layers"][1]["low"] < 0 < known["layers"][1]["high"]
    assert known["sites"] == known["proposed"] == []


def test_a_page_has_the_routes(tmp_path: Path) -> None:
    shown = routed()
    write_page(shown, tmp_path / "map.html")
    known = content(tmp_path / "map.html")
    first, second = known["routes"]

    assert known["bounds"] == list(shown.bounds)
    assert [(one["name"], one["cost"]) for one in known["routes"]] == [
        ("Day 1, team 1", "29.8 km, 3.5 h"),
        ("Day 1, team 2", "21.0 km"),
    ]
    assert [[known["proposed"][k]["label"] for k in one["sites"]] for one in known["routes"]] == [
        ["P17", "P16", "P14"],
        ["P13", "P12"],
    ]
    assert first["colour"] != second["colour"]
    np.testing.assert_allclose(first["line"], shown.routes[0].line, atol=0.5)
    assert len(shown.routes[1].line) == 52
    np.testing.assert_allclose(second["line"], shown.routes[1].line[[0, 49, 50, 51]], atol=0.5)
    np.testing.assert_allclose(known["depots"], shown.depots, atol=0.5)


def test_a_page_has_the_barriers_as_far_as_one_sees(tmp_path: Path) -> None:
    shown = routed()
    lake, sea = (shapely.box(*(CORNER + 1000 * k), *(CORNER + 1000 * (k + 2))) for k in (2, 900))
    write_page(replace(shown, barriers=shapely.union_all([lake, sea])), tmp_path / "map.html")
    known = content(tmp_path / "map.html")

    (ring,) = known["barriers"]
    assert {tuple(place) for place in ring} == {tuple(place) for place in shapely.get_coordinates(lake).tolist()}
    assert "Hatched areas are barriers that routes go around." in known["notes"]
    write_page(shown, tmp_path / "map.html")
    assert content(tmp_path / "map.html")["barriers"] == []


def world() -> Picture:
    """A map of the world: what is measured is the sine of the latitude."""
    crs = CRS.from_epsg(8857)
    region = make_region(earth(crs), [], crs)
    raster = region.cells(4000)
    sine = np.sin(np.radians(from_metric(raster.centres, crs, WGS84)[:, 1]))
    sites = region.points(50, 0)
    return Picture(
        Prediction(raster, sine, np.full(raster.count, 0.1)), region.shape, sites, np.zeros(50), sites[:3],
        ["P1", "P2", "P3"], crs, "World",
    )  # fmt: skip


def test_a_page_of_the_world_has_a_graticule_and_rows_instead_of_polynomials(tmp_path: Path) -> None:
    write_page(world(), tmp_path / "map.html")
    known = content(tmp_path / "map.html")
    assert [len(known["graticule"][name][0]["lines"]) for name in ("meridians", "parallels")] == [11, 5]
    assert known["scale"] is known["north"] is None
    assert set(known["inverse"]) == {"middle", "rows", "decimals"}
    assert (tmp_path / "map.html").stat().st_size < 600_000
    write_page(picture(), tmp_path / "map.html")
    known = content(tmp_path / "map.html")
    assert known["coasts"] == known["borders"] == []
    assert known["scale"] == ""
    assert abs(known["north"]) < 2
    assert set(known["inverse"]) == {"centre", "half", "coefficients", "decimals"}


def around_holland(**changes: object) -> Picture:
    """A map of 260 km, of sea and land, with a border."""
    box = shapely.MultiPolygon([shapely.box(520_000, 5_680_000, 780_000, 5_930_000)])
    raster = raster_of(box, 10_000.0, CRS.from_epsg(32631))
    values = np.linspace(0.0, 1.0, raster.count)
    sites = raster.centres[::40]
    return Picture(
        Prediction(raster, values, values), box, sites, np.linspace(0.0, 1.0, len(sites)), sites[:2], ["P1", "P2"],
        raster.crs, "Holland", **changes,
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_page_has_coasts_and_borders_finer_on_the_map_than_beyond(tmp_path: Path) -> None:
    shown = around_holland()
    write_page(shown, tmp_path / "map.html")
    known = content(tmp_path / "map.html")
    left, bottom, right, top = shown.bounds
    on_map = shapely.box(left, bottom, right, top)
    for key, lines in (("coasts", shown.coasts.coasts), ("borders", shown.coasts.borders)):
        found = shapely.MultiLineString(known[key])
        truth = shapely.MultiLineString(lines)
        assert shapely.hausdorff_distance(found & on_map, truth & on_map) < 1000
        assert found.bounds[2] > right + 200_000
    assert any(note.startswith("Coasts and borders: Natural Earth, 1:50 million") for note in known["notes"])
    own = around_holland(outline=[np.array([[4.0, 52.0], [5.0, 52.5]])])
    write_page(own, tmp_path / "own.html")
    assert len(content(tmp_path / "own.html")["coasts"]) == 1
    assert content(tmp_path / "own.html")["borders"] == []
    assert not any("Natural Earth" in note for note in content(tmp_path / "own.html")["notes"])


def test_a_graticule_has_lines_for_each_zoom(tmp_path: Path) -> None:
    write_page(around_holland(), tmp_path / "map.html")
    for kind in ("meridians", "parallels"):
        levels = content(tmp_path / "map.html")["graticule"][kind]
        apart = [level["apart"] for level in levels]
        assert apart == sorted(apart, reverse=True)
        assert len(levels) == 3
        for level in levels:
            first, second = (float(line["text"].split("°")[0]) for line in level["lines"][-2:])
            shrunk = np.cos(np.radians(52.4)) if kind == "meridians" else 1.0
            assert (second - first) * 111_195 * shrunk == pytest.approx(level["apart"], rel=0.02)


def test_a_failure_leaves_the_old_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(SurveyError, match=r"disk full.*What was there is unchanged"):
        write_page(picture(title="new"), page)
    assert page.read_bytes() == before
    assert list(page.parent.iterdir()) == [page]


# ---- In a browser


def missing() -> str:
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(programs)}: apt-get install chromium chromium-driver" if programs else ""


browser = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing() or "all there")]
SIZES = {"desktop": (1280, 800, 1), "phone": (390, 844, 2)}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
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


@pytest.fixture
def visit(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page in a window of a size; at the end, nothing may have been written to the console."""
    from selenium.webdriver.support.ui import WebDriverWait

    def open_page(shown: Picture, size: str = "desktop") -> Any:
        write_page(shown, tmp_path / "map.html")
        width, height, density = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": density, "mobile": size == "phone"}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chromium.get((tmp_path / "map.html").as_uri())
        WebDriverWait(chromium, 20).until(lambda driver: driver.execute_script(READY))
        return chromium

    chromium.get_log("browser")
    yield open_page
    assert chromium.get_log("browser") == []


READY = "return document.documentElement.dataset.ready === 'true'"
PAINTED = """
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => done(document.getElementById("map").toDataURL())));
"""


def painted(driver: Any) -> str:
    return driver.execute_async_script(PAINTED)


def screenshot(driver: Any, tmp_path: Path, name: str) -> None:
    painted(driver)
    folder = Path(os.environ.get("BO_SCALE_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    assert driver.save_screenshot(str(folder / f"{name}.png"))


def text(driver: Any, name: str) -> str:
    return driver.execute_script("return document.getElementById(arguments[0]).textContent", name).replace("−", "-")


class TestInABrowser:
    pytestmark = browser

    @pytest.mark.parametrize("size", SIZES)
    def test_every_layer_can_be_switched(self, visit: Any, tmp_path: Path, size: str) -> None:
        driver = visit(picture(), size)
        seen = {"mean": painted(driver)}
        screenshot(driver, tmp_path, f"{size}-mean")
        for layer in ("sd", "exceedance"):
            driver.find_element("id", f"raster-{layer}").click()
            seen[layer] = painted(driver)
            assert layer[:2] in text(driver, "legend-name").lower() or "Standard" in text(driver, "legend-name")
            driver.execute_script("scrollTo(0, 0)")
            screenshot(driver, tmp_path, f"{size}-{layer}")
        driver.find_element("id", "raster-mean").click()
        assert painted(driver) == seen["mean"]
        for what in ("proposed", "sites", "outline"):
            driver.find_element("id", f"show-{what}").click()
            seen[what] = painted(driver)
        driver.execute_script("opacity.value = 30; opacity.dispatchEvent(new Event('input', {bubbles: true}))")
        seen["opacity"] = painted(driver)
        assert len(set(seen.values())) == 7

    def test_intervals_can_be_read_and_stations_to_give_up_hidden(self, visit: Any, tmp_path: Path) -> None:
        shown = picture()
        known = shown.prediction
        ends = Intervals((known.mean - 2, known.mean + 2), (known.mean - 5, known.mean + 5))
        given_up = {"removed": shown.sites[:3], "removed_labels": ["A", "row 7", "C"]}
        driver = visit(replace(shown, prediction=replace(known, intervals=ends), **given_up))
        screenshot(driver, tmp_path, "intervals")
        driver.execute_script("read(data.sites[3][0], data.sites[3][1])")
        middle = float(text(driver, "read-mean"))
        low, high = map(float, text(driver, "read-new_lower").split(" to "))
        assert (low, high) == pytest.approx((middle - 5, middle + 5), abs=0.1)
        assert driver.find_element("id", "removed").is_displayed()
        seen = [painted(driver)]
        driver.find_element("id", "show-removed").click()
        seen.append(painted(driver))
        driver.find_elements("css selector", "#removals button")[1].click()
        seen.append(painted(driver))
        driver.find_element("id", "raster-new_upper").click()
        seen.append(painted(driver))
        assert len(set(seen)) == 4

    def test_coasts_and_graticule_can_be_hidden_and_labels_are_finer_nearby(self, visit: Any, tmp_path: Path) -> None:
        driver = visit(around_holland())
        screenshot(driver, tmp_path, "holland")
        seen = [painted(driver)]
        for what in ("coasts", "graticule"):
            driver.find_element("id", f"show-{what}").click()
            seen.append(painted(driver))
        assert len(set(seen)) == 3
        driver.find_element("id", "show-graticule").click()
        labels = "return drawGraticule().filter(({ text }) => text).map(({ text }) => text)"
        assert {"4.0° E", "52.0° N"} <= set(driver.execute_script(labels))
        boxes = driver.execute_script("return drawGraticule().map(box => box.slice(0, 4))")
        for number, (left, top, right, bottom) in enumerate(boxes):
            assert all(right < b[0] or b[2] < left or bottom < b[1] or b[3] < top for b in boxes[:number])
        driver.execute_script("zoom(16)")
        painted(driver)
        near = driver.execute_script(labels)
        assert near
        assert all(len(text) >= len("4.55° E") for text in near)
        screenshot(driver, tmp_path, "holland-near")
        assert driver.find_element("id", "north").is_displayed()
        assert text(driver, "coasts-name") == "Coasts and borders"

    def test_a_small_map_offers_no_coasts(self, visit: Any) -> None:
        driver = visit(picture())
        assert driver.find_elements("id", "show-coasts") == []

    def test_places_of_the_world_are_read_as_they_are(self, visit: Any, tmp_path: Path) -> None:
        from selenium.webdriver import ActionChains

        driver = visit(world())
        screenshot(driver, tmp_path, "world")
        assert not driver.find_element("id", "scale").is_displayed()
        assert not driver.find_element("id", "north").is_displayed()
        labels = driver.execute_script("return drawGraticule().filter(({ text }) => text).map(({ text }) => text)")
        assert {"0°", "60° E", "120° W", "30° N", "60° S"} <= set(labels)
        back = Transformer.from_crs(8857, 4326, always_xy=True)
        for right, down in ((0, 0), (-250, 60), (300, -120), (-100, 170)):
            ActionChains(driver).move_to_element_with_offset(driver.find_element("id", "map"), right, down).perform()
            found = [float(text(driver, f"read-{name}")) for name in ("longitude", "latitude", "mean")]
            lon, lat = back.transform(*driver.execute_script("return [pointer.x, pointer.y]"))
            assert found == pytest.approx([lon, lat, np.sin(np.radians(lat))], abs=0.03)
        box = driver.execute_script("const b = map.getBoundingClientRect(); return [b.width, b.height]")
        corner = (int(3 - box[0] / 2), int(box[1] / 2 - 3))
        ActionChains(driver).move_to_element_with_offset(driver.find_element("id", "map"), *corner).perform()
        assert text(driver, "read-longitude") == text(driver, "read-latitude") == text(driver, "read-mean") == "–"

    def test_what_is_read_is_what_was_predicted(self, visit: Any) -> None:
        from selenium.webdriver import ActionChains

        driver = visit(picture())
        box = driver.execute_script("const b = map.getBoundingClientRect(); return [b.width, b.height]")
        for right, down in ((-150, 40), (-90, -120), (120, 170)):
            ActionChains(driver).move_to_element_with_offset(driver.find_element("id", "map"), right, down).perform()
            at = np.array(driver.execute_script("return [pointer.x, pointer.y]"))
            expected = driver.execute_script(
                "return toGround(arguments[0], arguments[1])", box[0] / 2 + right, box[1] / 2 + down
            )
            np.testing.assert_allclose(at, expected, atol=60)
            assert float(text(driver, "read-mean")) == pytest.approx(field(at[None])[0], abs=0.5)
            assert 0 <= float(text(driver, "read-exceedance")) <= 1
            assert float(text(driver, "read-sd")) > 0
            truth = Transformer.from_crs(UTM, 4326, always_xy=True).transform(*at)
            assert float(text(driver, "read-longitude")) == pytest.approx(truth[0], abs=2e-5)
            assert float(text(driver, "read-latitude")) == pytest.approx(truth[1], abs=2e-5)

        hole = CORNER + 1000 * np.array([8.7, 3.2])
        driver.execute_script("read(arguments[0], arguments[1])", *hole.tolist())
        assert text(driver, "read-mean") == "–"
        site, value = picture().sites[5], picture().values[5]
        driver.execute_script("read(arguments[0], arguments[1])", *site.tolist())
        assert float(text(driver, "read-measured")) == pytest.approx(value, rel=1e-3)

    def test_moving_and_zooming(self, visit: Any, tmp_path: Path) -> None:
        from selenium.webdriver import ActionChains, Keys

        driver = visit(picture())
        canvas = driver.find_element("id", "map")
        start = painted(driver)
        view = "return [view.x, view.y, view.scale]"
        x, y, scale = driver.execute_script(view)

        driver.find_element("id", "zoom-in").click()
        assert driver.execute_script(view) == pytest.approx([x, y, 1.5 * scale])
        ActionChains(driver).move_to_element(canvas).click_and_hold().move_by_offset(60, 30).release().perform()
        assert driver.execute_script(view) == pytest.approx([x - 40 / scale, y + 20 / scale, 1.5 * scale], abs=1)
        canvas.send_keys(Keys.ARROW_RIGHT)
        assert driver.execute_script(view)[0] == pytest.approx(x, abs=1)
        assert float(text(driver, "read-mean")) > 0
        screenshot(driver, tmp_path, "desktop-moved")
        driver.find_element("id", "zoom-all").click()
        driver.execute_script("document.activeElement.blur()")
        assert painted(driver) == start
        driver.execute_script(
            "map.dispatchEvent(new WheelEvent('wheel', {deltaY: -100, clientX: 300, clientY: 300, cancelable: true}))"
        )
        assert driver.execute_script(view)[2] == pytest.approx(scale * np.exp(0.25))

        proposed = driver.find_elements("css selector", "#batch button")
        assert [button.text.split()[0] for button in proposed] == list(picture().labels)
        proposed[3].click()
        assert driver.execute_script(view)[:2] == pytest.approx(picture().proposed[3].tolist())
        assert proposed[3].get_attribute("aria-current") == "true"
        screenshot(driver, tmp_path, "desktop-chosen")

    def test_fingers_read_move_and_zoom(self, visit: Any) -> None:
        driver = visit(picture(), "phone")
        left, top, *start = driver.execute_script(
            "const box = map.getBoundingClientRect(); return [box.left, box.top, view.x, view.y, view.scale]"
        )

        def touch(kind: str, *fingers: tuple[float, float]) -> None:
            points = [{"x": left + x, "y": top + y, "id": i} for i, (x, y) in enumerate(fingers)]
            driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        touch("touchStart", (200, 300))
        assert float(text(driver, "read-mean")) > 0
        touch("touchMove", (230, 280))
        touch("touchEnd")
        moved = driver.execute_script("return [view.x, view.y, view.scale]")
        assert moved == pytest.approx([start[0] - 30 / start[2], start[1] - 20 / start[2], start[2]], abs=1)
        touch("touchStart", (150, 200), (250, 200))
        touch("touchMove", (100, 200), (300, 200))
        touch("touchEnd")
        assert driver.execute_script("return view.scale") == pytest.approx(2 * start[2], rel=1e-3)
        assert driver.execute_script("return scrollY") == 0

    def test_texts_from_outside_run_nothing(self, visit: Any) -> None:
        shown = picture()
        predicted = Prediction(shown.prediction.raster, shown.prediction.mean, shown.prediction.sd, quantity=HARM)
        driver = visit(picture(prediction=predicted, title=HARM, remarks=[HARM], labels=[HARM] * 6))
        assert driver.execute_script("return document.images.length + document.scripts.length") == 2
        assert HARM in text(driver, "legend-name")
        assert driver.title.startswith("<script>alert")

    @pytest.mark.parametrize("size", SIZES)
    def test_routes_are_listed_drawn_and_hidden(self, visit: Any, tmp_path: Path, size: str) -> None:
        driver = visit(routed(), size)
        start = painted(driver)
        screenshot(driver, tmp_path, f"{size}-routes")
        groups = driver.find_elements("css selector", "#batch > li")
        words = [" ".join(group.get_attribute("textContent").split()) for group in groups]
        assert [word.split(" km")[0] for word in words[:2]] == ["Day 1, team 129.8", "Day 1, team 221.0"]
        assert words[2].startswith("Not on a route")
        buttons = driver.find_elements("css selector", "#batch button")
        labels = [button.find_element("tag name", "b").text for button in buttons]
        assert labels == ["P17", "P16", "P14", "P13", "P12", "P15"]

        driver.find_element("id", "show-routes").click()
        hidden = painted(driver)
        driver.find_element("id", "show-proposed").click()
        assert len({start, hidden, painted(driver)}) == 3
        driver.find_element("id", "show-proposed").click()
        driver.find_element("id", "show-routes").click()
        assert painted(driver) == start

        shown = routed()
        for k in (1, 5):
            buttons[k].click()
            place = shown.proposed[list(shown.labels).index(labels[k])]
            assert driver.execute_script("return [view.x, view.y]") == pytest.approx(place.tolist())
            assert [button.get_attribute("aria-current") for button in buttons].count("true") == 1
            assert buttons[k].get_attribute("aria-current") == "true"
        for control in driver.find_elements("css selector", "button, input, canvas"):
            assert control.accessible_name.strip()

    def test_without_routes_nothing_speaks_of_them(self, visit: Any) -> None:
        driver = visit(picture())
        assert driver.find_elements("id", "show-routes") == []
        assert "oute" not in driver.find_element("tag name", "body").text

    @pytest.mark.parametrize("size", SIZES)
    def test_a_large_survey(self, visit: Any, tmp_path: Path, size: str) -> None:
        driver = visit(picture(size=24.0, sites=30_000), size)
        screenshot(driver, tmp_path, f"{size}-large")
        driver.execute_script("scrollTo(0, document.body.scrollHeight)")
        screenshot(driver, tmp_path, f"{size}-large-end")
        wide = driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0

    def test_a_slider_shows_one_date_after_another(self, visit: Any, tmp_path: Path) -> None:
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import WebDriverWait

        driver = visit(picture())
        page = (tmp_path / "map.html").read_text(encoding="utf-8")
        every = [
            (date, page.replace("<title>", f"<title>{date} ")) for date in ("2024-06-01", "2024-06-08", "2024-06-15")
        ]
        write_dates("sea & <b>surface</b>", every, tmp_path / "dates.html")
        driver.get((tmp_path / "dates.html").as_uri())

        def seen() -> tuple[str, str]:
            shown = text(driver, "shown")
            driver.switch_to.frame("page")
            title = driver.execute_script("return document.title")
            driver.switch_to.default_content()
            return shown, title[:10]

        assert driver.title == "sea & <b>surface</b>"
        assert seen() == ("2024-06-15", "2024-06-15")
        slider = driver.find_element("id", "date")
        for date in ("2024-06-08", "2024-06-01"):
            slider.send_keys(Keys.ARROW_LEFT)
            WebDriverWait(driver, 20).until(lambda _, date=date: seen() == (date, date))
            assert slider.get_attribute("aria-valuetext") == date
        folder = Path(os.environ.get("BO_SCALE_SCREENSHOTS", tmp_path))
        assert driver.save_screenshot(str(folder / "dates.png"))

    def test_every_control_has_a_name_and_takes_the_focus(self, visit: Any) -> None:
        driver = visit(picture())
        for control in driver.find_elements("css selector", "button, input, canvas"):
            assert control.accessible_name.strip()
            driver.execute_script("arguments[0].focus()", control)
            assert driver.switch_to.active_element == control
