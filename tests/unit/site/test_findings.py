"""What `lm-validity findings` and the end of `lm-validity report` print: a line or two a study, or everything."""

import json
import sys
from pathlib import Path

import pytest

from lm_validity.cli import main
from lm_validity.cli.study import findings as print_findings
from lm_validity.errors import InputError
from lm_validity.words import headlines

LEDE = {"heading": "Rankings agree better", "sentence": "Agreement: **0.52 → 0.76**", "interval": "95%: +0.15 to +0.33"}
LONG = "On " + "and on ".join(f"benchmark {number}, " for number in range(60)) + "nothing was found."


def write_pages(folder: Path, documents: dict[str, tuple[dict | None, list[str]]]) -> None:
    """Pages of reports, from their ledes and findings."""
    for name, (lede, sentences) in documents.items():
        found = [{"sentence": sentence, "basis": "", "alarm": False} for sentence in sentences]
        (folder / name).mkdir(parents=True)
        page = {"name": name, "title": name.title(), "lede": lede, "findings": found}
        (folder / name / "page.json").write_text(json.dumps(page))


@pytest.fixture
def site(tmp_path) -> Path:
    """Six reports: two with a headline, others of an earlier version, with long findings."""
    documents = {"agreement": (LEDE, ["Of tau."]), "factors": (None, ["One factor explains 0.79. Another 0.1."])}
    documents |= {name: (None, [LONG, "More."]) for name in ("signal", "items", "bias")}
    documents["readiness"] = ({"heading": "Ready?", "sentence": "Not known.", "interval": ""}, [])
    write_pages(tmp_path / "site", documents)
    (tmp_path / "site" / "index.html").write_text("")
    return tmp_path / "site"


@pytest.fixture
def findings(monkeypatch, capsys):
    """A function (arguments, columns of the terminal) -> lines of the command; without columns, into a pipe."""

    def call(*arguments: object, columns: int | None = None) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["lm-validity", "findings", *map(str, arguments)])
        monkeypatch.setattr(sys.stdout, "isatty", lambda: columns is not None)
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return capsys.readouterr().out.splitlines()

    return call


def test_at_most_12_lines_of_at_most_80_columns(site, findings, monkeypatch):
    monkeypatch.chdir(site.parent)
    lines = findings("site")
    assert len(lines) <= 12 and max(map(len, lines)) <= 80
    assert lines[1] == "Agreement  Agreement: 0.52 → 0.76 (95%: +0.15 to +0.33)."  # no room for its heading
    assert lines[2] == "Factors    One factor explains 0.79."
    assert lines[3] == "Readiness  Ready? Not known."
    assert [line[:8].strip() for line in lines[4:-1] if line[0] != " "] == ["Signal", "Items", "Bias"]
    assert sum(line.endswith(" …") for line in lines) == 3
    assert lines[-1].endswith(" findings --all site")
    everything = {"- Of tau.", "- More.", f"- {LONG}", "- One factor explains 0.79. Another 0.1."}
    assert everything <= set(findings("site", "--all"))
    narrow = findings("site", columns=60)
    assert len(narrow) <= 12 and max(map(len, narrow)) <= 60


def test_of_a_runs_site_and_of_a_report_of_its_own(site, findings, tmp_path):
    """Of a run's site the reports lie beside it; a folder without any is refused."""
    run = tmp_path / "run"
    (run / "report" / "signal").mkdir(parents=True)
    (run / "report" / "index.html").write_text("")
    (run / "report" / "signal" / "index.html").write_text("")
    (run / "reports").mkdir()
    (site / "signal").rename(run / "reports" / "signal")
    own = findings(run / "report")
    assert [line for line in own if line.startswith("Signal")]
    (run / "reports" / "signal" / "index.html").write_text("")
    assert findings(run / "reports" / "signal")[1:-1] == own[1:-1]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "index.html").write_text("")
    with pytest.raises(InputError, match="empty: no report"):
        print_findings(tmp_path / "empty")


def test_where_lines_are_few_a_text_ends_behind_a_sentence_and_what_was_computed_goes(tmp_path):
    """Six reports, 13 lines of text: ten lines are left, none ends in the middle of a sentence."""
    number = "One factor explains 87% of the differences between these twelve models after training"
    common = {"heading": "", "sentence": f"{number}.", "interval": "95%: 69% to 95%"}
    ledes = dict.fromkeys(("agreement", "factors", "readiness", "bias", "computation"), common)
    defined = "Ready: above chance for good, and the order of all models nearly settled. First: a benchmark of a name."
    ledes["signal"] = {"heading": "Two of three are ready before the end", "sentence": defined, "interval": ""}
    write_pages(tmp_path, {name: (lede, []) for name, lede in ledes.items()})
    lines = headlines(tmp_path / name for name in ledes)
    assert len(lines) == 10 and not any("Computation" in line or "…" in line for line in lines)
    assert sum("95%)" in line for line in lines) == 4 and lines[-1].endswith("nearly settled.")
