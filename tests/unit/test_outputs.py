"""A command replaces what it wrote itself, and nothing else: folders full of somebody's own files keep every byte."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from lm_validity.cli import register_commands
from lm_validity.errors import InputError
from lm_validity.files import LIST, check_file, file_sha256, replaced_folder
from lm_validity.site.first_page import ORDER
from lm_validity.tables.schema import SCORES, write_table


def call(*arguments: object) -> tuple[int, str]:
    """Exit code and, where it is 2, the problem."""
    done = CliRunner().invoke(register_commands(), [str(each) for each in arguments])
    if isinstance(done.exception, InputError):
        return 2, done.exception.problem
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder with its SHA-256; links with where they lead."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path) if path.is_symlink() else file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def foreign_folder(folder: Path, names) -> dict[str, str]:
    """Somebody's own files under all these names; their digests."""
    for name in names:
        path = folder / name
        path = path if path.suffix else path / "notes.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"mine: {name}")
    (folder / "thesis").mkdir(parents=True)
    (folder / "thesis" / "chapter.txt").write_text("years of work")
    return digests(folder)


CONFIG = Path("config/test.yaml").resolve()
TABLES = ("--scores", "given/scores.parquet", "--models", "given/models.csv", "--benchmarks", "given/benchmarks.csv")
SITE = ("report", "given/table.csv", "--resamples", "0", "--output")
PAIR = ("report", "given/pair.csv", *SITE[2:])  # two models: a third of the work
COMMANDS = {
    "report": (SITE, (*ORDER, "cards", "assets", "index.html", "scores.parquet", "models.tsv")),
    "report agreement": (("report", "agreement", *TABLES, "--resamples", "0", "--output"), ("tables", "index.html")),
    "import": (("import", "given/table.csv", "--output"), ("scores.parquet", "import.json")),
    "compare": (("compare", "ash-1b", "ash-2b", *TABLES[:2], "--output"), ("page.json", "assets")),
    "simulate pca": (("simulate", "pca", "--splits", "2", "--output"), ("figures", "page.json")),
    "miniature world": (("miniature", "world", "--configfile", CONFIG, "--output"), ("data", "tasks", "world.json")),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_somebody_elses_files_keep_every_byte(place, name):
    """Under each name that the command writes, one at a time, and all of them together."""
    command, names = COMMANDS[name]
    for number, each in enumerate((*names, *([names] if len(names) > 1 else []))):
        output = place / f"mine{number}"
        before = foreign_folder(output, [each] if isinstance(each, str) else each)
        code, problem = call(*command, output)
        assert (code, digests(output)) == (2, before), each
        assert isinstance(each, tuple) or str(output / each) in problem
    assert not [path for path in place.rglob(".*")]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_writes_again_and_leaves_what_is_not_its_own(place, name):
    command, _ = COMMANDS[name]
    output = place / "out"
    mine = foreign_folder(output, ["zebra"])
    assert call(*command, output)[0] == 0
    listed = json.loads((output / LIST).read_text())["commands"]
    assert {*digests(output)} == {
        LIST,
        *mine,
        *(path for files in listed.values() for path in files if path[-1] != "/"),
    }
    first = digests(output)
    inside = [folder for folder in output.iterdir() if folder.is_dir() and folder.name not in ("zebra", "thesis")]
    for folder in inside:
        (folder / "added.txt").write_text("by hand")
    assert call(*command, output)[0] == 0
    again = digests(output)
    assert {path: again[path] for path in first} == first
    assert {*again} - {*first} == {f"{folder.name}/added.txt" for folder in inside}
    assert not [path for path in place.rglob(".*")]


@pytest.mark.parametrize("name", [name for name in COMMANDS if not name.startswith(("simulate", "miniature"))])
@pytest.mark.parametrize("output", ["given", ".", "given/scores.parquet"])
def test_an_output_that_is_an_input_or_holds_one_is_refused(place, name, output):
    before = digests(place)
    command, _ = COMMANDS[name]
    code, problem = call(*command, output)
    assert code == 2 and output in problem and digests(place) == before


@pytest.fixture(scope="module")
def written_once(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sites") / "site"


@pytest.fixture
def site(place, written_once) -> Path:
    """The output of `SITE`, which is written once for all tests."""
    if not written_once.exists():
        assert call(*SITE, "out")[0] == 0
        (place / "out").rename(written_once)
    shutil.copytree(written_once, place / "out")
    return place / "out"


@pytest.fixture
def pair(place):
    """The first two models' scores."""
    lines = (place / "given" / "table.csv").read_text().splitlines(keepends=True)
    (place / "given" / "pair.csv").write_text("".join(lines[:3]))


@pytest.mark.usefixtures("pair")
def test_a_link_in_the_output_is_refused_before_anything_is_written(place):
    (place / "elsewhere").mkdir()
    (place / "out").mkdir()
    (place / "out" / "agreement").symlink_to("../elsewhere")
    before = digests(place)
    code, problem = call(*PAIR, "out")
    assert code == 2 and "out/agreement" in problem and digests(place) == before
    (place / "out" / "agreement").unlink()
    (place / "linked").symlink_to("out")  # the output itself may be one: results are kept on other disks
    assert call(*PAIR, "linked")[0] == 0 and (place / "out" / "index.html").is_file()
    (place / "nowhere").symlink_to("not/there")
    code, problem = call("import", "given/pair.csv", "--output", "nowhere")
    assert (code, problem) == (2, "nowhere: a link that leads nowhere.") and not (place / "not").exists()


@pytest.mark.usefixtures("pair")
def test_an_edited_sheet_is_not_written_over(place):
    assert call(*PAIR, "out")[0] == 0
    sheet = place / "out" / "models.tsv"
    edited = sheet.read_text().replace("ash\t", "oak\t", 1)
    sheet.write_text(edited)
    before = digests(place)
    code, problem = call(*PAIR, "out")
    assert code == 2 and "out/models.tsv" in problem and digests(place) == before
    assert call(*PAIR, "out", "--models", sheet)[0] == 0 and sheet.read_text() == edited
    assert call(*PAIR, "out")[0] == 2 and sheet.read_text() == edited
    assert call(*PAIR, "out", "--models", sheet)[0] == 0 and sheet.read_text() == edited


def test_a_report_that_is_not_written_again_goes(place, site):
    """Its files, but not what somebody added to its folder."""
    (site / "factors" / "mine.txt").write_text("mine")
    table = pd.read_parquet(place / "given" / "scores.parquet")
    steps = [table[table["model"] == "ash-1b"].assign(checkpoint=f"step{s}", iteration=s) for s in (1, 2, 3)]
    (place / "curve").mkdir()
    write_table(pd.concat(steps), SCORES, place / "curve" / "scores.parquet")
    code, text = call("report", "curve", *SITE[2:], "out")
    assert code == 0, text
    assert not (site / "agreement").exists() and (site / "signal" / "index.html").is_file()
    assert [path.name for path in (site / "factors").iterdir()] == ["mine.txt"]


def test_a_call_that_was_ended_while_it_moved_its_files(place, monkeypatch):
    """The next one takes them over: the list names them before they are moved."""
    with replaced_folder("out", "report") as folder:
        for name in ("a.txt", "b.txt"):
            (folder / name).write_text("old")
    replace = os.replace

    def stopped(source, target):
        if Path(target).name == "b.txt":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt), replaced_folder("out", "report") as folder:
        for name in ("a.txt", "b.txt", "c.txt"):
            (folder / name).write_text("new")
    monkeypatch.undo()
    assert Path(place, "out", "a.txt").read_text() == "new" and Path(place, "out", "b.txt").read_text() == "old"
    with replaced_folder(place / "out", "report") as folder:
        (folder / "b.txt").write_text("newest")
    assert {*digests(place / "out")} == {"b.txt", LIST}


def test_files_that_are_no_page_of_ours(place):
    (place / "mine.html").write_text("<html>% done</title>")
    for path in ("mine.html", "given"):
        with pytest.raises(InputError, match=path):
            check_file(path, ("--stale:", "% done</title>"))
    (place / "status.html").symlink_to("mine.html")
    with pytest.raises(InputError, match=r"status\.html"):
        check_file("status.html", ("% done</title>",))
    check_file("new.html")


def test_a_list_that_is_not_ours_is_refused(place):
    (place / "out").mkdir()
    for text in ("[1]", "not JSON", json.dumps({"format": 1, "commands": {"report": {"../given/table.csv": ["1"]}}})):
        (place / "out" / LIST).write_text(text)
        with pytest.raises(InputError, match=LIST), replaced_folder("out", "report"):
            pass
