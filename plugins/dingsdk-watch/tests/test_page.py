"""The page in a real Chromium; needs Debian's ``chromium`` and ``chromium-driver``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dingsdk_watch.runs import Run
from dingsdk_watch.server import Server
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from .run_folders import write_run

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0
Serve = Callable[..., Server]
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: apt-get install chromium chromium-driver")
    return found


class Browser:
    """A browser with a new, empty profile."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = program("chromium")
        flags = ["--headless=new", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        for flag in [*flags, *(["--no-sandbox"] if os.getuid() == 0 else [])]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(program("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(PATIENCE_S)

    def close(self) -> None:
        self.driver.quit()

    def set_size(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def open(self, url: str) -> None:
        self.driver.get(url)

    def wait(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.driver, PATIENCE_S).until(lambda _: condition())

    def wait_for(self, connection: str) -> None:
        self.wait(lambda: connection in self.text("#connection"))

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def tile(self, name: str) -> str:
        """Return the text of the named tile."""
        source = (
            "const at = [...document.querySelectorAll('#tiles dt')]"
            ".find((each) => each.textContent === arguments[0]);"
            "return at ? at.nextElementSibling.textContent : ''"
        )
        return self.run(source, name)

    def rows(self, table: str) -> list[list[str]]:
        source = (
            "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        found: list[list[str]] = self.run(source, table)
        return found

    def run(self, source: str, *arguments: Any) -> Any:
        return self.driver.execute_script(source, *arguments)

    def first_curve(self) -> list[list[float]]:
        line = self.driver.find_element(By.CSS_SELECTOR, "#charts figure:first-child .curve")
        pairs = str(line.get_attribute("points")).split()
        return [[float(number) for number in pair.split(",")] for pair in pairs]

    def complaints(self) -> list[str]:
        """Return the console messages since the last call."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


def test_page_opens_with_the_address_that_is_printed_and_shows_the_run_with_its_curves(
    browser: Browser, serve: Serve, run_folder: Path
) -> None:
    server = serve(run_folder)
    browser.open(server.url)
    browser.wait_for("live")

    assert browser.driver.current_url == f"http://127.0.0.1:{server.port}/"
    assert browser.driver.title == "cartpole: under way"
    assert browser.tile("return") == "50.5 (best 60)"
    assert browser.tile("env steps") == "1,200"
    assert browser.tile("policy lag") == "1.5 (most 3)"
    assert browser.tile("left to the limit") == "38 s"
    assert browser.tile("phase") == "warm"
    assert browser.rows("workers") == [
        ["c0", "collector", "10 s", "collector t7", "64", "41.5/s, straggler", "room"],
        ["l0", "learner", "8 s", "idle", "-", "-", "-"],
    ]
    assert ["evicted: overwritten", "500"] in browser.rows("samples")
    browser.wait(lambda: browser.text("#log") == "first line\nlast line\n")
    captions = browser.run(
        "return [...document.querySelectorAll('#charts figcaption')].map((e) => e.textContent)"
    )
    assert captions == ["mean return of evaluations", "loss", "exploration/eps"]
    assert browser.complaints() == []
    (cookie,) = browser.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["value"] in server.url) == (
        True,
        "Strict",
        False,
    )
    # Two evaluations: 10.0 after 100 env steps and 50.5 after 900. The goal of 100 is above both.
    (x0, y0), (x1, y1) = browser.first_curve()
    assert x1 > x0
    assert y1 < y0
    Select(browser.driver.find_element(By.ID, "axis")).select_by_visible_text("time")
    (t0, _), (t1, _) = browser.first_curve()
    # Both axes start at 0 and end at the last evaluation, so the first one is at 1/9 on both.
    assert (t0, t1) == pytest.approx((x0, x1), abs=0.2)


def test_page_follows_a_run_and_stays_after_its_end(
    browser: Browser, serve: Serve, tmp_path: Path
) -> None:
    sets = ["env.stop_value=1000", "system.max_env_steps=100000000", "env.evaluator_env_num=1"]
    command = [sys.executable, "-m", "dingsdk", "train", "cartpole-dqn", "-q", "-o", str(tmp_path)]
    for each in sets:
        command += ["--set", each]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    try:
        folder = tmp_path / "cartpole-dqn"
        browser.wait(lambda: (folder / "status.json").is_file())
        browser.open(serve(folder).url)
        browser.wait_for("live")

        def steps() -> int:
            shown = browser.tile("env steps").replace(",", "")
            return int(shown) if shown.isdecimal() else 0

        first = steps()
        browser.wait(lambda: steps() > first)
        second = steps()
        browser.wait(lambda: steps() > second)
        browser.wait(lambda: browser.tile("env steps/s") not in ("-", "0"))
    finally:
        training.terminate()
        training.wait(PATIENCE_S)
    browser.wait_for("over")

    assert browser.tile("run") == "over: interrupted"
    assert steps() > first
    browser.driver.refresh()
    browser.wait_for("over")
    assert browser.run("return document.querySelectorAll('#charts svg').length") >= 4
    assert browser.complaints() == []


def test_page_is_readable_on_a_phone(
    browser: Browser, serve: Serve, run_folder: Path, tmp_path: Path
) -> None:
    long = write_run(tmp_path / ("a_long_name_of_a_run_" * 4), columns={"x" * 60: "y" * 60})
    (long / "log" / "learner" / "learner_logger.txt").write_text("z" * 400)
    browser.set_size(390, 844)
    browser.open(serve(run_folder, long).url)
    browser.wait_for("live")
    browser.driver.find_elements(By.CSS_SELECTOR, "nav button")[1].click()
    browser.wait(lambda: "zzz" in browser.text("#log"))

    assert browser.run("return document.documentElement.scrollWidth") <= 390
    wide = browser.run(
        "return [...document.querySelectorAll('main *')]"
        ".filter((each) => !each.closest('.scroll, pre, svg'))"
        ".filter((each) => each.getBoundingClientRect().right > 390.5)"
        ".map((each) => each.outerHTML)"
    )
    assert wide == []
    sizes = browser.run(
        "return [...document.querySelectorAll('dd, dt, td, th, button, select, p, pre')]"
        ".map((each) => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(sizes) >= 12
    chart = browser.run(
        "return document.querySelector('#charts svg').getBoundingClientRect().width"
    )
    assert 300 < chart <= 390


def test_names_and_logs_of_runs_are_shown_as_text(
    browser: Browser, serve: Serve, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run", columns={HOSTILE: HOSTILE}, held_up_by=HOSTILE)
    (folder / "log" / "learner" / "learner_logger.txt").write_text(HOSTILE)
    browser.open(serve(folder).url)
    browser.wait(lambda: HOSTILE in browser.text("#log"))

    assert browser.tile(HOSTILE) == HOSTILE
    assert HOSTILE in browser.text("#notice")
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    assert browser.driver.title == "run: under way"


def test_several_runs_are_compared_and_one_is_chosen(
    browser: Browser, serve: Serve, run_folder: Path, tmp_path: Path
) -> None:
    other = write_run(tmp_path / "other", reason="limit", env_steps=77, last_return=3.0)
    (other / "log" / "learner" / "learner_logger.txt").write_text("of the other\n")
    browser.open(serve(run_folder, other).url)
    browser.wait_for("live")

    rows = browser.rows("compare-table")
    assert [row[:2] for row in rows] == [["cartpole", "under way"], ["other", "over: limit"]]
    colours = "return [...document.querySelectorAll('#charts figure:first-child .curve')].map("
    assert browser.run(f"{colours}(each) => each.getAttribute('class'))") == [
        "curve c0",
        "curve c1",
    ]
    browser.driver.find_elements(By.CSS_SELECTOR, "nav button")[1].click()
    browser.wait(lambda: browser.text("#log") == "of the other\n")
    assert browser.tile("env steps") == "77"
    assert browser.driver.title == "other: over: limit"


def test_page_says_that_its_server_is_gone(browser: Browser, run_folder: Path) -> None:
    with Server([Run(run_folder)]) as server:
        browser.open(server.url)
        browser.wait_for("live")

    browser.wait_for("no answer from the server")
    assert browser.tile("env steps") == "1,200"
