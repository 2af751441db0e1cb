"""The report page as text: whole, escaped, complete, and nothing loaded from elsewhere."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from parallelsim.search.grid import grid_search
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.planfile import read_document
from parallelsim.report.page import Report, page_html
from parallelsim.yaml_io import dump_yaml, parse_yaml

VOID = frozenset({"meta", "link", "input", "br"})
PLAN = ("--model", "llama3-8b", "--gpus", "16", "--global-batch-size", "64")


class Page(HTMLParser):
    """What a page says, and what is wrong with its structure."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.addresses.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        """Its words."""
        return " ".join(" ".join(self.words).split())


def report(*args: str) -> Result:
    """Of a narrow terminal, which is nothing to the page."""
    return CliRunner(env={"COLUMNS": "40"}).invoke(main, ["report", *args])


def check_structure(file: Path, limit: int = 400_000) -> Page:
    content = file.read_text(encoding="utf-8")
    page = Page(content)
    assert page.problems == []
    assert len(page.ids) == len(set(page.ids))
    for address in page.addresses:
        inside = address.startswith("#") and address[1:] in page.ids
        assert inside or address == "data:,", address
    assert not re.search(r"url\((?!#)|@import|\bfetch\(|XMLHttpRequest|import\(", content)
    assert len(content) < limit
    return page


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A report, and the file of the same plans."""
    folder = tmp_path_factory.mktemp("report")
    page, file = folder / "report.html", folder / "plans.yaml"
    result = report(*PLAN, "--top", "6", "--quick", "--output", str(page))
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    again = CliRunner().invoke(main, ["plan", *PLAN, "--top", "6", "--output", str(file)])
    assert again.exit_code == 0, again.output
    return page, file


def test_page_is_one_whole_file_that_shows_every_plan_and_its_script(
    plans: tuple[Path, Path],
) -> None:
    page = check_structure(plans[0])
    document = read_document(plans[1])
    rows = re.findall(
        r'<tr class="(?:safe|tight)[^"]*"><th scope="row" data-v="(\d+)"', plans[0].read_text()
    )
    assert [int(rank) for rank in rows] == [entry.rank for entry in document.plans]
    assert re.search('<p class="about">batch .* a step.*safe up to .*</p>', plans[0].read_text())
    for heading in ("Run plan 1", "Why it wins", "Where the time goes", "Not modelled"):
        assert heading in page.text
    script = CliRunner().invoke(main, ["export", str(plans[1]), "--to", "megatron"]).stdout
    assert " ".join(script.split()) in page.text
    assert "parallelsim report --model llama3-8b" in page.text
    assert page.tags.count("svg") == 1 + (document.plans[0].plan.pp > 1)


def test_page_of_saved_plans_has_the_same_plans_and_no_search(
    plans: tuple[Path, Path], tmp_path: Path
) -> None:
    target = tmp_path / "saved.html"
    result = report(str(plans[1]), "--output", str(target))
    assert result.exit_code == 0, result.output
    page = check_structure(target)
    first = re.search(r'<p class="plan">(.*?)</p>', plans[0].read_text())
    assert first is not None
    assert first[0] in target.read_text()
    assert "Plans that were rejected" not in page.text
    refused = report(str(plans[1]), "--fix", "tp=2", "--output", str(tmp_path / "new.html"))
    assert refused.exit_code == 2
    assert "--fix: the plans of a file are shown as they are" in refused.stderr


def test_names_and_sources_stay_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>&\"'{{ 7 * 7 }}"
    text = files("parallelsim.models").joinpath("llama3-8b.yaml").read_text(encoding="utf-8")
    data = parse_yaml(text, "model")
    data["architecture"]["source"] = evil
    file = tmp_path / "<script>{{ 7 * 7 }}<b>.yaml"
    file.write_text(dump_yaml(data), encoding="utf-8")
    target = tmp_path / "report.html"
    options = ("--model", str(file), *PLAN[2:], "--fix", "pp=2", "--top", "2", "--quick")
    result = report(*options, "--output", str(target))
    assert result.exit_code == 0, result.output
    page = check_structure(target)
    assert evil in page.text
    assert file.name in page.text
    assert page.tags.count("script") == 1


def test_a_models_name_stays_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    model = replace(load_model("llama3-8b"), name=name)
    cluster, framework = load_cluster("hgx-h100", num_gpus=8), load_framework("megatron-core")
    result = grid_search(SearchSpace(model, cluster, framework, global_batch_size=16), 2)
    text = page_html(Report(header=[name], result=result, is_search=True))
    assert text.count(html.escape(name)) >= 3
    assert text.count("<script>") == 1


def test_where_nothing_fits_the_page_says_what_would_help(tmp_path: Path) -> None:
    target = tmp_path / "none.html"
    result = report("--model", "llama3-8b", "--gpus", "1", "--output", str(target))
    assert result.exit_code == 3
    assert len([line for line in result.stderr.splitlines() if "error:" in line]) == 1
    page = check_structure(target)
    assert "No safe plan" in page.text
    assert "The nearest miss" in page.text
    assert "Would help: " in page.text
    assert "Launch script" not in page.text


def test_asked_beside_the_ranking_is_on_the_page(tmp_path: Path) -> None:
    target = tmp_path / "beside.html"
    options = ("--top", "2", "--quick", "--tokens", "1T", "--why-not", "tp=8")
    result = report(*PLAN, *options, "--output", str(target))
    assert result.exit_code == 0, result.output
    page = check_structure(target)
    assert "1.00 T tokens with plan 1" in page.text
    assert "Why not tp=8" in page.text


def test_a_file_is_replaced_only_when_asked_and_never_an_input(
    plans: tuple[Path, Path], tmp_path: Path
) -> None:
    before = plans[0].read_bytes()
    result = report(*PLAN, "--output", str(plans[0]))
    assert result.exit_code == 1
    assert "exists already; use --force" in result.stderr
    assert plans[0].read_bytes() == before
    result = report(str(plans[1]), "--output", str(plans[1]), "--force")
    assert result.exit_code == 1
    assert "is an input of this command" in result.stderr
    result = report(*PLAN, "--output", str(tmp_path / "missing" / "report.html"))
    assert result.exit_code == 1
    assert "the folder does not exist" in result.stderr


def test_long_pipelines_are_drawn_without_their_steady_middle(tmp_path: Path) -> None:
    target = tmp_path / "long.html"
    fixed = ("--fix", "tp=2,cp=1,pp=4,micro_batch_size=1,schedule=1f1b")
    size = ("--model", "llama3-8b", "--gpus", "16", "--global-batch-size", "2048")
    result = report(*size, *fixed, "--quick", "--top", "1", "--output", str(target))
    assert result.exit_code == 0, result.output
    page = check_structure(target)
    assert "Drawn with 16 of the 1024 micro-batches" in page.text
    assert "pp 4, vpp 1, 16 micro-batches" in page.text


@pytest.mark.parametrize("theme", ["light", "dark", "paper"])
def test_colours_are_told_from_what_is_behind_them(theme: str) -> None:
    """WCAG 2.2: a contrast of 4.5 for text."""
    css = files("parallelsim.report").joinpath("page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    assert len(blocks) == 3
    block = blocks[("light", "dark", "paper").index(theme)]
    colours = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", block))

    def luminance(name: str) -> float:
        parts = [int(colours[name][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    written = ("ink", "muted", "link", "good", "warn")
    pairs = [(text, behind) for text in written for behind in ("surface", "raised")]
    pairs += [("on", f"c{number}") for number in range(1, 9)]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}
