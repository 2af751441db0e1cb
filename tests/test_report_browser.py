"""The report page in Chromium, from disk, with the network off: it sorts, filters and copies."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from parallelsim.cli import main

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (extra 'browser')")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("browser") / "report.html"
    plan = (
        "--model",
        "llama3-8b",
        "--gpus",
        "16",
        "--global-batch-size",
        "64",
        "--top",
        "12",
        "--all-variants",
    )
    result = CliRunner().invoke(main, ["report", *plan, "--quick", "--output", str(target)])
    assert result.exit_code == 0, result.output
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        program = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield program
        program.close()


@pytest.fixture(params=[(390, "dark"), (1440, "light")], ids=["phone", "desk"])
def page(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[Any]:
    """The page; nothing may reach for the network or complain, whatever the test does."""
    width, theme = request.param
    size = {"width": width, "height": 800}
    context = browser.new_context(viewport=size, color_scheme=theme, offline=True)
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda call: asked.append(call.url))
    tab.goto(file.as_uri())
    yield tab
    context.close()
    assert said == []
    assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}


def shown(page: Any, column: int = 0) -> list[str]:
    """A column of the rows that can be seen."""
    cells = page.locator(f"#ranking tbody tr:visible > :nth-child({column + 1})")
    return [text.removesuffix("=") for text in cells.all_text_contents()]


def column_of(page: Any, header: str) -> int:
    return int(page.locator("#ranking thead button").all_text_contents().index(header))


def test_nothing_but_boxes_of_their_own_scrolls_sideways(page: Any) -> None:
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
    assert page.locator("h1").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") in (
        "rgb(255, 255, 255)",
        "rgb(20, 23, 27)",
    )


def test_columns_sort_by_number_with_mouse_and_keyboard(page: Any) -> None:
    page.locator("#ranking input[type=checkbox]").check()
    ranks = [int(text) for text in shown(page)]
    assert ranks == sorted(ranks)
    column = column_of(page, "GiB")
    head = page.locator("#ranking thead th").nth(column)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    values = [float(text) for text in shown(page, column)]
    assert values == sorted(values)
    assert len(set(values)) > 1
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(text) for text in shown(page, column)] == sorted(values, reverse=True)
    assert page.locator("#ranking th[aria-sort=none]").count() == (
        page.locator("#ranking thead th").count() - 1
    )


def test_plans_are_filtered_by_words_and_by_axis(page: Any) -> None:
    total = page.locator("#ranking tbody tr").count()
    folded = len(shown(page))
    assert 0 < folded < total
    status = page.locator("#ranking output")
    assert status.text_content() == f"{folded} of {total} plans"
    page.locator("#ranking input[type=checkbox]").check()
    assert len(shown(page)) == total
    assert status.text_content() == f"{total} of {total} plans"
    page.locator("#ranking input[type=search]").fill("tight")
    tight = shown(page)
    assert 0 < len(tight) < total
    assert status.text_content() == f"{len(tight)} of {total} plans"
    page.locator("#ranking button[type=reset]").click()
    page.locator("#ranking output", has_text=f"{folded} of {total} plans").wait_for()
    assert len(shown(page)) == folded
    axis = page.locator("#ranking select").first
    value = axis.locator("option").last.text_content()
    axis.select_option(value)
    found = shown(page, int(axis.get_attribute("data-column")))
    assert set(found) == {value}


@pytest.mark.parametrize("api", [True, False], ids=["clipboard API", "selection"])
def test_the_script_is_copied(page: Any, api: bool) -> None:
    if not api:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    # What reaches the clipboard is what a paste brings.
    page.evaluate("document.body.append(document.createElement('textarea'))")
    page.locator("#launch button").click()
    page.locator("#launch output", has_text="Copied.").wait_for()
    page.locator("textarea").focus()
    page.keyboard.press("Control+V")
    pasted = page.locator("textarea").input_value()
    assert pasted.strip() == page.locator("#launch pre").text_content().strip()
    assert pasted.startswith("#!/")


def test_paper_shows_what_is_folded_and_fits_its_width(page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 964, "height": 700})  # of Letter, within margins of 12 mm
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".filters").is_visible()
    assert page.locator("details p, details table").first.is_visible()
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
