"""The texts of the bias study and its language models; and a worker that is killed (SIGKILL, any moment)."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import train_test_split
from toy_texts import CLASSES, table_bytes, toy_model, toy_rows, toy_source
from toy_world import write_lines

from lm_validity.cells.models.prefetch import prefetch_language_model, prefetch_model
from lm_validity.cells.trials.data import draw_hash, draw_trial, prefetch_task, read_task, without_duplicates
from lm_validity.cells.trials.worker import ResidentWorker
from lm_validity.config.sections import Adapter
from lm_validity.config.sheets import BiasModel, Model
from lm_validity.errors import CellError, InputError
from lm_validity.run.rules.pretrain_on_test import TaskData

KINDS = {"labels": CLASSES, "label": "kind"}


@pytest.fixture
def fetch(tmp_path):
    """A function (rows, arguments of `prefetch_task`, keys of the sheet) -> the record of the task."""

    def fetch(texts=None, *checks, path: object = None, unique: bool = True, **options):
        source = toy_source(tmp_path, texts, **options)
        source = source.model_copy(update={} if path is None else {"path": str(path)})
        return prefetch_task(source, tmp_path / "toy.parquet", *checks, unique=unique)

    return fetch


@pytest.fixture
def task(fetch):
    return read_task(TaskData.of_record(fetch()))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_the_same_texts_are_the_same_task_whatever_file_holds_them(fetch, tmp_path, suffix):
    expected, frame, path = fetch(), pd.DataFrame(toy_rows()), tmp_path / f"again{suffix}"
    task = read_task(TaskData.of_record(expected))
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    for options in ({}, KINDS):
        assert fetch(path=path, **options)["sha256"] == expected["sha256"]
    assert expected["rows"] == 150 and expected["classes"] == dict.fromkeys(CLASSES, 50)
    assert list(task.texts) == frame["text"].tolist() and task.labels.tolist() == frame["label"].tolist()


def test_a_text_na_in_a_csv_stays_text(fetch, tmp_path):
    (tmp_path / "toy.csv").write_text('text,label\nNA,0\n"a, b",1\nnull,2\n')
    assert read_task(TaskData.of_record(fetch(path=tmp_path / "toy.csv"))).texts == ("NA", "a, b", "null")


def test_columns_are_joined_and_booleans_are_classes(fetch):
    rows = [{"title": f"t{number}", "body": "b", "label": number % 2 == 1} for number in range(4)]
    task = read_task(TaskData.of_record(fetch(rows, text=("title", "body"), class_names=("no", "yes"))))
    assert task.texts[0] == "t0\nb" and task.labels.tolist() == [0, 1, 0, 1]


def changed(row: int, **values) -> list[dict]:
    rows = toy_rows()
    rows[row] = {**rows[row], **values}
    return rows


@pytest.mark.parametrize(
    ("rows", "options", "problem", "hint"),
    [
        (changed(6, text="  "), {}, "task 'toy', row 7: no text", "drop_empty"),
        (changed(6, text=None), {}, "task 'toy', row 7: no text", "drop_empty"),
        (changed(6, text="a\ud800"), {}, "toy.jsonl: character 2, '\\ud800', is half of a pair", "leave it out"),
        (changed(6, label=3), {}, "task 'toy', row 7: unknown label 3", "values go into the tasks sheet's `labels`"),
        (changed(6, kind="animol"), KINDS, "task 'toy', row 7: unknown label 'animol'", "did you mean 'animal'?"),
        (toy_rows(), {"rows": 151}, "task 'toy': 150 rows, 151 in the tasks sheet", "pin its revision"),
        (toy_rows(), {"majority_share": 0.4}, "largest class has 0.3333 of the rows, 0.4000", "revision and labels"),
        (toy_rows(), {"class_names": (*CLASSES, "stone")}, "class 3 ('stone') has no rows", "class_names"),
        ([], {}, "task 'toy': no rows in", "copy the file again"),
        (toy_rows(), {"text": ("texts",)}, "no column 'texts'", "did you mean 'text'?"),
        (toy_rows(), {"shorter_than": 2}, "task 'toy': no rows", "filters"),
    ],
)
def test_what_is_wrong_with_a_task_is_named(fetch, tmp_path, rows, options, problem, hint):
    with pytest.raises(InputError) as caught:
        fetch(rows, **options)
    assert problem in caught.value.problem and hint in caught.value.hint
    assert not (tmp_path / "toy.parquet").exists()


def test_empty_and_long_texts_leave_where_the_sheet_says_so(fetch):
    rows = changed(6, text="")
    kept = [number for number, row in enumerate(rows) if 0 < len(row["text"]) < 35]
    record = fetch(rows, drop_empty=True, shorter_than=35, rows=len(kept))
    task = read_task(TaskData.of_record(record))
    assert task.rows.tolist() == kept and 0 < len(kept) < len(rows)
    assert task.where(0) == f"task 'toy', row {kept[0] + 1}"


def test_a_line_that_is_not_json_is_named(fetch, tmp_path):
    (tmp_path / "broken.jsonl").write_text("{}\n" * 150 + "{broken\n")
    with pytest.raises(InputError, match="line 151 is not a JSON object"):
        fetch(path=tmp_path / "broken.jsonl")


@pytest.mark.parametrize(
    ("m", "n", "problem"),
    [
        (12, 70, "150 rows, m = 12 and n = 70 need 152"),
        (153, 1, "class 0 has 50 rows, m = 153 needs 51 of each"),
        (2, 5, "m = 2 is less than one training text for each of 3 classes"),
    ],
)
def test_a_task_that_is_too_small_is_named_on_the_login_node_and_in_the_job(fetch, task, m, n, problem):
    with pytest.raises(InputError, match="task 'toy': ") as caught:
        fetch(None, [(12, 15), (m, n)])
    assert problem in caught.value.problem
    with pytest.raises(CellError, match="task 'toy': ") as caught:
        draw_trial(task, m, n, 1)
    assert problem in caught.value.problem


def test_other_texts_than_the_recorded_ones_are_refused(fetch, tmp_path):
    data = TaskData.of_record(fetch())
    fetch(changed(6, text="another"))
    with pytest.raises(CellError, match="not those that were recorded"):
        read_task(data)
    with pytest.raises(CellError, match="cannot be read"):
        read_task(replace(data, path=str(tmp_path / "nowhere.parquet")))


def test_draws_are_the_authors_and_train_does_not_depend_on_n(task):
    frame = pd.DataFrame({"label": task.labels})
    for subsample in (1, 7):
        train = pd.concat(rows.sample(4, random_state=42 + subsample) for _, rows in frame.groupby("label"))
        rest = frame.drop(train.index)
        extra, test = train_test_split(rest, train_size=15, test_size=15, random_state=42 + subsample)
        draw = draw_trial(task, 13, 15, subsample)  # 13: floor(13 / 3) of each class
        assert draw.train.tolist() == train.index.tolist()
        assert (draw.extra.tolist(), draw.test.tolist()) == (extra.index.tolist(), test.index.tolist())
        assert len(np.unique(np.concatenate([draw.train, draw.extra, draw.test]))) == 12 + 30
        assert draw_trial(task, 13, 40, subsample).train.tolist() == draw.train.tolist()


def test_equal_texts_are_counted_and_never_both_drawn(fetch):
    rows = toy_rows()
    rows += [{**row, "text": row["text"].upper().replace(" ", "  \n")} for row in rows[:60]]
    record = fetch(rows, [(12, 60)])
    assert (record["rows"], record["duplicate_rows"], record["unique_texts"]) == (210, 120, 150)
    task = read_task(TaskData.of_record(record))
    kept = without_duplicates(task)
    assert kept.rows.tolist() == list(range(150)) and kept.labels.tolist() == task.labels[:150].tolist()
    seen = []
    for each in (task, kept):
        draw = draw_trial(each, 12, 60, 1)
        other = {" ".join(each.texts[row].lower().split()) for row in (*draw.train, *draw.extra)}
        seen.append(sum(" ".join(each.texts[row].lower().split()) in other for row in draw.test))
    assert seen[0] > 5 and seen[1] == 0
    with pytest.raises(InputError, match="150 rows, m = 12 and n = 70 need 152"):
        fetch(rows, [(12, 70)])
    fetch(rows, [(12, 70)], unique=False)


def test_a_test_hash_is_of_a_set_of_rows_of_these_data(task):
    rows = draw_trial(task, 12, 15, 1).test
    assert draw_hash(task, rows) == draw_hash(task, rows[::-1])
    assert draw_hash(task, rows) != draw_hash(task, draw_trial(task, 12, 15, 2).test)
    assert draw_hash(task, rows) != draw_hash(replace(task, sha256="other data"), rows)


def test_parquet_files_of_a_hub_repository_are_read_from_the_cache(fetch, tmp_path, monkeypatch):
    """The layout of huggingface_hub's cache, without network."""
    snapshot = tmp_path / "cache" / "datasets--someone--toy" / "snapshots" / "0123456789abcdef"
    (snapshot / "plain" / "train").mkdir(parents=True)
    rows = pd.DataFrame(toy_rows())
    for part in (0, 1):
        rows[part * 75 : (part + 1) * 75].to_parquet(snapshot / "plain" / "train" / f"000{part}.parquet", index=False)
    refs = snapshot.parents[1] / "refs" / "refs" / "convert"
    refs.mkdir(parents=True)
    (refs / "parquet").write_text(snapshot.name)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    source = {"path": "someone/toy", "revision": "refs/convert/parquet", "files": ("plain/train/*.parquet",)}
    found = fetch(**source)
    assert found["revision"] == snapshot.name and found["rows"] == 150
    assert found["sha256"] == fetch()["sha256"]
    for change, problem in (
        ({"path": "someone/other"}, "cannot be fetched"),
        ({"files": ("*.json",)}, "no file matches *.json"),
    ):
        with pytest.raises(InputError) as caught:
            fetch(**source | change)
        assert problem in caught.value.problem


def test_a_folder_that_the_datasets_library_reads_is_a_source(fetch, tmp_path, monkeypatch):
    write_lines(tmp_path / "named" / "train.jsonl", toy_rows())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert fetch(path=tmp_path / "named")["sha256"] == fetch()["sha256"]


def prefetched(folder, architecture: str) -> dict:
    row = BiasModel(language_model="m", path=str(folder), architecture=architecture)
    return prefetch_language_model(SimpleNamespace(language_models={"m": row}), "m")


def test_a_masked_model_is_fetched_for_the_bias_study_only(tmp_path):
    folder = toy_model("bert", tmp_path / "bert", pooler=True)
    assert prefetched(folder, "masked")["checkpoints"]["final"]["digest"]
    with pytest.raises(InputError, match="BertForPreTraining"):
        prefetched(folder, "causal")
    with pytest.raises(InputError, match="BertForPreTraining"):
        prefetch_model(Model(model="m", path=str(folder)))
    assert prefetched(toy_model("gpt2", tmp_path / "gpt2"), "causal")["checkpoints"]["final"]["digest"]


LIMIT_S = 240.0


def finished(folder: Path) -> int:
    return len(list(folder.glob("trial-*.parquet")))


def start(plan, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ResidentWorker().run(plan, folder, shared=folder.parent / "shared")
            status = 0
        finally:
            os._exit(status)
    return child


def kill_and_resume(plan, folder: Path, kills: int, seed: int) -> list[int]:
    """Finished trials at each kill."""
    chance = random.Random(seed)
    deadline = time.monotonic() + LIMIT_S
    counts = []
    for _ in range(kills):
        before, child = finished(folder), start(plan, folder)
        while finished(folder) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the worker ended by itself ({status}): more subsamples are needed"
        counts.append(finished(folder))
    _, status = os.waitpid(start(plan, folder), 0)
    assert status == 0, status
    return counts


ZERO_SHOT = {"classification": {"method": "zero_shot"}, "pretraining": {"adapter": Adapter(rank=4)}}
PLANS = {"bert": ("bert", {}), "gpt2": ("gpt2", {}), "zero-shot": ("gpt2", ZERO_SHOT)}


@pytest.mark.parametrize(("kills", "subsamples"), [(1, 4), pytest.param(20, 70, marks=pytest.mark.slow)])
def test_kills_lose_no_trial(plan_of, tmp_path, early_fork, kills, subsamples):
    """Of a head on each architecture, its base arms shared with another n, and zero-shot with adapters."""
    options = {"subsamples": tuple(range(1, subsamples + 1)), "share_base": ((20, subsamples),)}
    for number, (name, (kind, more)) in enumerate(PLANS.items()):
        plan, folder = plan_of(kind, **options, **more), tmp_path / name
        (folder / "killed").mkdir(parents=True)
        counts = early_fork.call(kill_and_resume, plan, folder / "killed", kills, number)
        # no trial lost: every process found those before it and finished at least one of its own
        assert len(counts) == kills and all(later > earlier for earlier, later in zip([0, *counts], counts))  # noqa: B905
        assert counts[-1] < len(plan.subsamples)
        ResidentWorker().run(plan, folder / "undisturbed")
        expected = table_bytes(plan, folder / "undisturbed", folder / "expected")
        assert table_bytes(plan, folder / "killed", folder / "found") == expected
