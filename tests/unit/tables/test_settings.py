"""Like with like: which scores of unlike settings are compared, which stay out, and what is said."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from lm_validity.cli.reports import app
from lm_validity.site.cards.values import CardSources
from lm_validity.tables.counted import Sources, count_scores
from lm_validity.tables.schema import SCORES, SETTINGS, read_table, write_table

ABILITIES = {"ant": 0.30, "bee": 0.36, "cat": 0.42, "dog": 0.50, "elk": 0.56, "fox": 0.64}
TASKS = ("qa_one", "qa_two", "qa_three")


def made(folder, *changes, **common):
    """scores.parquet and settings.parquet of six models on three tasks; `changes`: (models, tasks, settings)."""
    rows = [
        {"model": model, "benchmark": task, "value": ability + 0.01 * place, "stderr": 0.02, "metric": "acc,none",
         "protocol": "direct", "checkpoint": "final", "higher_is_better": True}
        for model, ability in ABILITIES.items()
        for place, task in enumerate(TASKS)
    ]  # fmt: skip
    settings = pd.DataFrame([{"model": row["model"], "benchmark": row["benchmark"]} | common for row in rows])
    for models, tasks, values in changes:
        here = settings["model"].isin(models) & settings["benchmark"].isin(tasks)
        for name, value in values.items():
            settings[name] = settings.get(name, pd.Series(None, settings.index, dtype=object)).mask(here, value)
    write_table(pd.DataFrame(rows), SCORES, folder / "scores.parquet")
    write_table(settings, SETTINGS, folder / "settings.parquet")
    (folder / "b.csv").write_text("benchmark,metric\n" + "".join(f"{task},acc\n" for task in TASKS))
    return folder / "scores.parquet"


def models_on(counted, task) -> list[str]:
    return sorted(counted.rows.loc[counted.rows["benchmark"] == task, "model"])


CHANGED = ["bee", "fox"]
FULL = {"n_items_scored": 60, "n_items_total": 60}
CASES = {  # changes, what all have, who is compared on qa_one and qa_two, what a note says
    "the commonest version": (
        [(CHANGED, ["qa_one"], {"task_version": "3.0"})], {"task_version": "1.0", "harness": "lm-eval"},
        "acde", "abcdef", "(2): qa_one 3 (bee, fox), where 1 is used"),
    "of as many the higher version, and 1 is 1.0": (
        [(["ant", "bee", "cat"], ["qa_one"], {"task_version": "2"}), (["ant"], ["qa_two"], {"task_version": "1"})],
        {"task_version": "10.0"}, "def", "bcdef", "qa_one 2"),
    "versions of another harness, and unknown ones": (
        [(["ant"], TASKS, {"task_version": "0", "harness": "lighteval"}), (["cat"], TASKS, {"task_version": None})],
        {"task_version": "1", "harness": "lm-eval"}, "abcdef", "abcdef", ""),
    "a part of the items": (
        [(CHANGED, TASKS, {"n_items_scored": 17, "n_items_total": 60})], FULL, "acde", "acde", "bee, fox"),
    "a limit": (
        [(CHANGED, TASKS, {"limit": 9.0, "n_items_scored": None, "n_items_total": None})], FULL, "acde", "acde", "fox"),
    "a limit as a share": ([(CHANGED, TASKS, {"limit": 0.2, "n_items_scored": 12})], FULL, "acde", "acde", "bee, fox"),
    "an answer that failed": (
        [(CHANGED, TASKS, {"n_items_scored": 59, "n_items_total": 60})], FULL, "abcdef", "abcdef", ""),
    "a limit that no item met": ([(CHANGED, TASKS, FULL | {"limit": 100.0})], FULL, "abcdef", "abcdef", ""),
    "all of one part": ([], {"limit": 100.0}, "abcdef", "abcdef", ""),
    "like settings": (
        [], {"chat_template": True, "backend": "hf", "task_version": "1", "temperature": 0.0}, "abcdef", "abcdef", ""),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "common", "one", "two", "note"), CASES.values(), ids=CASES)
def test_scores_of_unlike_versions_and_parts_stay_out_and_are_named(tmp_path, changes, common, one, two, note):
    scores = made(tmp_path, *changes, **common)
    counted = count_scores(Sources(scores))
    assert ["".join(name[0] for name in models_on(counted, task)) for task in TASKS[:2]] == [one, two]
    said = [text for text in counted.notes if "stay out" in text]
    assert bool(counted.kept_out) == bool(note) == (len(said) > 0) and note in " ".join(said)
    mixed = count_scores(Sources(scores), unlike="kept")
    assert len(mixed.rows) == 18 and (not note or any("bee" in text for text in mixed.notes))


def test_other_settings_are_compared_and_said_once(tmp_path):
    chat = (["bee", "dog", "fox"], TASKS, {"chat_template": True, "task_hash": "own"})
    vllm = (["ant"], ["qa_one"], {"backend": "vllm"})
    scores = made(tmp_path, chat, vllm, chat_template=False, backend="hf", task_hash="h", task_version="1")
    counted = count_scores(Sources(scores)).last()
    assert len(counted.rows) == 18
    assert [tuple(one) for one in counted.differing] == [
        ("chat_template", "chat template: no (3), yes (3)", ("qa_one", "qa_three", "qa_two")),
        ("backend", "backend: hf (5), vllm (1)", ("qa_one",)),
    ]
    (note,) = [note for note in counted.notes if "settings" in note]
    assert "chat template: no (3), yes (3); backend: hf (5), vllm (1) on qa_one." in note
    cards = CardSources(scores, tmp_path / "b.csv", [])
    assert any("backend" in note for note in cards.notes("qa_one"))
    assert [note for note in cards.notes("qa_two") if "backend" in note] == []
    assert any("chat template: no (3), yes (3)" in note for note in cards.notes("qa_two"))


def test_unlike_numbers_of_items_are_said_without_settings_too(tmp_path):
    rows = read_table(made(tmp_path), SCORES)
    unlike = (rows["benchmark"] == "qa_two") & rows["model"].isin(["ant", "elk"])
    counts = pd.Series(1000, rows.index).mask(unlike, 100).mask(rows["model"] == "fox", 980)  # a few failed
    write_table(rows.assign(n_items=counts), SCORES, tmp_path / "scores.parquet")
    (tmp_path / "settings.parquet").unlink()
    (difference,) = count_scores(Sources(tmp_path / "scores.parquet")).last().differing
    assert difference == ("n_items", "number of items: 100 to 1000", ("qa_two",))


def test_a_key_that_settings_leave_open_stands_for_all_and_a_given_one_counts_before_it(tmp_path):
    scores = made(tmp_path, task_version="1")
    table = pd.read_parquet(scores)
    write_table(pd.concat([table, table.assign(checkpoint="step1", iteration=1)]), SCORES, scores)
    settings = pd.read_parquet(tmp_path / "settings.parquet")
    final = settings[settings["model"] == "ant"].assign(checkpoint="final", task_version="2")
    write_table(pd.concat([settings, final]), SETTINGS, tmp_path / "settings.parquet")
    counted = count_scores(Sources(scores))
    assert len(counted.rows) == 33
    assert counted.rows.loc[counted.rows["model"] == "ant", "checkpoint"].tolist() == ["step1"] * 3


@pytest.mark.parametrize("mixed", [False, True])
def test_the_site_says_it_in_terminal_first_page_and_card(tmp_path, mixed, monkeypatch):
    (tmp_path / "in").mkdir()
    chat = (["bee", "dog", "fox"], TASKS, {"chat_template": True})
    version = (["bee", "fox"], ["qa_one"], {"task_version": "3"})
    made(tmp_path / "in", chat, version, chat_template=False, task_version="1")
    arguments = [str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--resamples", "0"]
    done = CliRunner().invoke(app, [*arguments, *(["--mix-versions"] if mixed else [])])
    assert done.exit_code == 0, done.output
    assert "chat template: no (3), yes (3)" in done.output and "bee, fox" in done.output
    assert "chat template: no (3), yes (3)" in (tmp_path / "out" / "index.html").read_text()
    card = json.loads((tmp_path / "out" / "cards" / "qa_two" / "card.json").read_text())
    assert any("chat template: no (3), yes (3)" in note for note in card["notes"])
    results = pd.read_parquet(tmp_path / "out" / "agreement" / "results.parquet")
    here = results[(results["quantity"] == "benchmark_models") & (results["subject"] == "qa_one")]
    assert here.loc[here["protocol"] == "direct", "value"].tolist() == [6.0 if mixed else 4.0]
