"""The site of a run says under its title whether its models are synthetic."""

import json
from pathlib import Path

import pytest

from lm_validity.config.load import load_run
from lm_validity.errors import InputError
from lm_validity.pages.page import Finding, Page, write_page
from lm_validity.site.first_page import build_site
from lm_validity.site.report import SYNTHETIC, about_run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("configfile", "about"), [("config/config.yaml", SYNTHETIC), ("config/small/small.yaml", "")], ids=["demo", "real"]
)
def test_only_a_run_of_the_miniature_says_that_it_is_synthetic(tmp_path, monkeypatch, configfile, about):
    monkeypatch.chdir(ROOT)
    run = load_run(configfile)
    assert about_run(run) == about
    write_page(Page("agreement", "A", [Finding("One.")], []), tmp_path / "agreement")
    text = build_site([tmp_path / "agreement"], tmp_path / "site", name=run.name, about=about_run(run)).read_text()
    head = text.partition("<h1>")[2].partition("One.")[0]
    assert (SYNTHETIC in head) == bool(about) and f"The run {run.name}." in head


@pytest.mark.parametrize("version", [2, None])
def test_a_page_of_another_version_is_refused(tmp_path, version):
    write_page(Page("agreement", "A", [Finding("One.")], []), tmp_path / "agreement")
    path = tmp_path / "agreement" / "page.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": version}))
    with pytest.raises(InputError, match=r"page\.json: a page of another version"):
        build_site([tmp_path / "agreement"], tmp_path / "site")
    assert not (tmp_path / "site").exists()
