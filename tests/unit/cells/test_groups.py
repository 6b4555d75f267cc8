"""Groups of tasks and solved examples, against lm-eval itself; splits, which are disjoint; corpora of one's own."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import toy_world
from shipped_data import data_of
from toy_run import jobs_of, merged, record_benchmark, record_model, run_all, write_sheet
from toy_world import all_documents, evaluate, lm_eval_itself, load_toy, toy_model, toy_rows, write_toy_tasks

from lm_validity.cells.tasks.evaluation import prepare_requests, training_examples
from lm_validity.cells.tasks.finding import TaskRecord, find_task
from lm_validity.cells.tasks.splits import Split, documents, make_splits, prefetch_benchmark, write_documents
from lm_validity.cells.tasks.tasks import fewshot_digest, load_task
from lm_validity.config.load import build_run
from lm_validity.config.sheets import Benchmark, read_benchmarks
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json
from lm_validity.run.workspace import read_manifest
from lm_validity.studies.signal.filters.kinds import Selection
from lm_validity.studies.signal.filters.recipe import Export, Recipe, selection_files, task_files, write_files
from lm_validity.tables.items import read_benchmark_items, read_documents
from lm_validity.tables.schema import read_benchmark_facts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pets(tmp_path_factory.mktemp("groups"))


def load(name, folder, **settings):
    """Through the record as JSON, as a job does."""
    record = find_task(name, folder)
    return load_task(TaskRecord.from_json(json.loads(json.dumps(record.to_json()))), **settings)


def check_items(found, samples, member=None):
    items = found.items if member is None else found.items[found.items["subject"] == member]
    for row, sample in zip(items.itertuples(), samples, strict=True):
        assert row.doc_id.endswith(f"test:{sample['doc_id']}")
        theirs = [loglikelihood for ((loglikelihood, _),) in sample["resps"]]
        np.testing.assert_allclose(row.choice_loglikelihoods, theirs, atol=1e-4)


@pytest.mark.parametrize(("kind", "prompt", "shots"), [("gpt2", "plain", 2), ("llama", "chat", 1)])
@pytest.mark.parametrize("name", ["pets_alpha", "pets_beta"])
def test_fewshot_equals_lm_eval(name, kind, prompt, shots, model_folders, folder):
    """Examples drawn at random (alpha) and the first ones (beta)."""
    expected = lm_eval_itself(model_folders[kind], folder, name, shots, chat=prompt == "chat")
    task = load(name, folder, num_fewshot=shots)
    lm = load_toy(model_folders[kind])
    lm.answer_start = ""
    for _ in range(2):  # the second time draws the same examples
        found = evaluate(lm, task, all_documents(task), metric="acc,none", prompt=prompt)
        assert found.metrics["acc,none"][0] == pytest.approx(expected["results"][name]["acc,none"])
        check_items(found, expected["samples"][name])
    shown = expected["samples"][name][0]["arguments"][0][0]
    assert shown.count("Question:") == shots + 1


@pytest.mark.parametrize("shots", [0, 2])
def test_group_equals_lm_eval(shots, model_folders, folder):
    expected = lm_eval_itself(model_folders["gpt2"], folder, "pets", shots)
    task = load("pets", folder, num_fewshot=shots)
    lm = load_toy(model_folders["gpt2"])
    found = evaluate(lm, task, all_documents(task), metric="acc,none")
    theirs = expected["results"]["pets"]
    assert len(found.items) == theirs["sample_len"] == sum(SIZES.values())
    for metric in ("acc", "acc_norm"):
        value, error = found.metrics[f"{metric},none"]
        assert value == pytest.approx(theirs[f"{metric},none"], abs=1e-12)
        assert error == pytest.approx(theirs[f"{metric}_stderr,none"], abs=1e-12)
    assert found.metrics["acc,none"][0] == pytest.approx(found.items["correct"].mean())  # weighted by size
    assert found.items["doc_id"].is_unique and set(found.items["subject"]) == {f"pets_{name}" for name in SIZES}
    for name in SIZES:
        check_items(found, expected["samples"][f"pets_{name}"], f"pets_{name}")
    overridden = expected["samples"]["pets_gamma"][0]["arguments"][0][0]
    assert overridden.startswith("About small ones.")


def test_a_tag_is_its_tasks_weighted_by_size(model_folders, folder):
    task = load("pets_tag", folder)
    assert list(task.members) == ["pets_alpha", "pets_beta", "pets_gamma"]
    lm = load_toy(model_folders["gpt2"])
    found = evaluate(lm, task, all_documents(task), metric="acc_norm,none")
    assert found.metrics["acc_norm,none"][0] == pytest.approx(found.items["correct"].mean())


def test_splits_of_a_group(folder, model_folders):
    task = load("pets", folder)
    splits = make_splits(task, caps=(30, 5, 20))
    assert [len(split.addresses) for split in splits] == [29, 5, 20]
    docs = documents(task, Split.from_json(json.loads(json.dumps(splits.test.to_json()))))
    assert {address.partition("/")[0] for address in docs.addresses} == set(task.members)
    assert list(docs.addresses) == sorted(docs.addresses, key=lambda a: (a.partition("/")[0], int(a.split(":")[1])))
    examples = training_examples(load_toy(model_folders["gpt2"]), task, documents(task, splits.train))
    assert len(examples) == 29


def test_a_group_is_recorded_with_its_files(folder):
    record = find_task("pets", folder)
    assert record.version == "3" and record.output_type == "multiple_choice"
    assert [file for _, file in record.group_files] == ["pets.yaml", "pets_inner.yaml"]
    assert [member.task for member in record.members] == ["pets_alpha", "pets_beta", "pets_gamma"]
    path = folder / "pets_beta.yaml"
    text = path.read_text()
    path.write_text(text.replace("what is the color", "which is the color"))
    try:
        with pytest.raises(InputError, match=r"pets: a file of the group's 5 or its code changed"):
            load_task(record)
    finally:
        path.write_text(text)


def test_bad_groups_are_named(folder, monkeypatch, tmp_path):
    with pytest.raises(InputError, match="differ in output type"):
        find_task("pets_mixed", folder)
    (tmp_path / "tasks").mkdir()  # else it is looked for in lm-eval's 14,000 files
    monkeypatch.setattr("lm_validity.cells.tasks.finding.PACKAGE", tmp_path)
    with pytest.raises(InputError, match="pets_broken: the group names 'pets_omega', which is not a task"):
        find_task("pets_broken", folder)


def test_groups_of_unlike_splits_are_refused(tmp_path):
    """Else all would be scored on validation, also a task that has test documents."""
    folder = write_pets(tmp_path)
    gamma = folder / "pets_gamma.yaml"
    text = gamma.read_text()
    gamma.write_text(text.replace("test_split: test", "validation_split: test"))
    unlike = r"the tasks of the group differ in their splits \(pets_alpha has train and test, pets_gamma has "
    with pytest.raises(InputError, match=rf"pets: {unlike}train and validation\)\."):
        load("pets", folder)
    assert list(load("pets_inner", folder).members) == ["pets_alpha", "pets_beta"]
    # what is trained on must be alike only where something is trained
    gamma.write_text(text.replace("training_split: train\n", "").replace("fewshot_split: train\n", ""))
    task = load("pets", folder)
    assert len(make_splits(task, test_only=True).test.addresses) == 28
    with pytest.raises(InputError, match=rf"{unlike}test\)"):
        make_splits(task)


FEWSHOT = [  # what is added to the task's file, and what is said
    ("", "would be the documents of 'test', which are scored"),
    ("num_fewshot: 0\n", "says num_fewshot: 0, which lm-eval does not override"),
    ("fewshot_config: {fewshot_indices: [3]}\n", "fewshot_indices, which lm-eval reads and does not use"),
]


def test_bad_fewshot_counts_are_named(folder, toy_folder, tmp_path):
    with pytest.raises(InputError, match="13 examples asked for, it has 12"):
        load("pets_alpha", folder, num_fewshot=13)
    text = (folder / "pets_gamma.yaml").read_text()
    for more, problem in FEWSHOT:
        scored = text if more else text.replace("training_split: train\n", "").replace("fewshot_split: train\n", "")
        (tmp_path / "a.yaml").write_text(scored + more)
        with pytest.raises(InputError, match=problem):
            load("pets_gamma", tmp_path, num_fewshot=1)
    # a task that would like three examples gets those that the sheet says
    assert load("toy_generation", toy_folder).config.num_fewshot == 0


def test_digest_of_the_examples(folder):
    zero, one, two = (load("pets", folder, num_fewshot=count) for count in (0, 1, 2))
    assert fewshot_digest(zero) is None and fewshot_digest(one) == fewshot_digest(two) is not None
    assert fewshot_digest(one) != fewshot_digest(load("pets_inner", folder, num_fewshot=1))


def test_mutual_information_on_demand(model_folders, folder, toy_folder):
    """A task without acc_mutual_info gets it, as lm-eval computes it for a task that lists it."""
    lm = load_toy(model_folders["llama"])
    plain, asked = load("pets", folder), load("pets", folder, mutual_information=True)
    found = evaluate(lm, asked, all_documents(asked), metric="acc_mutual_info,none")
    for row in found.items.itertuples():
        gains = np.subtract(row.choice_loglikelihoods, row.unconditional_loglikelihoods)
        assert row.correct == float(np.argmax(gains) == row.gold)
    without = evaluate(lm, plain, all_documents(plain), metric="acc,none")
    assert without.items["unconditional_loglikelihoods"].isna().all()
    for theirs, ours in zip(without.items.itertuples(), found.items.itertuples(), strict=True):
        np.testing.assert_allclose(ours.choice_loglikelihoods, theirs.choice_loglikelihoods, atol=1e-4)
    with pytest.raises(InputError, match="cannot add acc_mutual_info"):
        load("toy_generation", toy_folder, mutual_information=True)


def test_documents_of_a_group_score_the_same_as_a_task_of_their_own(model_folders, folder, tmp_path):
    """Whole prompts, with each task's description and random examples, survive the export."""
    task = load("pets", folder, num_fewshot=2)
    docs = all_documents(task)
    write_documents("pets", task, docs, tmp_path / "documents.parquet")
    texts = read_documents(tmp_path / "documents.parquet", "pets")
    kept = tuple(docs.addresses[::3])
    write_files(task_files(texts, kept, "some_pets", Export()), tmp_path / "tasks")
    lm = load_toy(model_folders["gpt2"])
    first = evaluate(lm, task, docs, metric="acc,none").items.set_index("doc_id").loc[list(kept)]
    exported = load("some_pets", tmp_path / "tasks")
    again = evaluate(lm, exported, all_documents(exported), metric="acc,none")
    for one, other in zip(first.itertuples(), again.items.itertuples(), strict=True):
        np.testing.assert_allclose(one.choice_loglikelihoods, other.choice_loglikelihoods, atol=1e-4)
        assert one.gold == other.gold and one.subject == other.subject
    selection = Selection(np.isin(docs.addresses, kept), kept, ())
    files = selection_files(selection, Recipe("some_pets", "pets", "pets", "correct", (), (), Export(), {}))
    samples = json.loads(files["samples.json"])
    assert samples["pets_alpha"] == [0, 3, 6, 9, 12] and sum(map(len, samples.values())) == len(kept)


def test_choices_that_stand_in_the_prompt_cannot_be_exported(toy_folder, tmp_path):
    task = load("toy_blank", toy_folder)
    write_documents("blank", task, all_documents(task), tmp_path / "documents.parquet")
    texts = read_documents(tmp_path / "documents.parquet")
    assert list(texts["context"].unique()) == ["house at night."] and texts["prompt"].isna().all()
    with pytest.raises(InputError, match="its choices are in the prompt"):
        task_files(texts, tuple(texts["doc_id"][:2]), "blanks", Export())


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """One model whose only weights are those of two checkpoints in subfolders, `final` the last of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    steps = {"early": 10, "final": 20}
    for seed, at in enumerate(steps.values()):
        toy_model("gpt2", tmp_path / "model" / f"iter_{at}", seed=seed)
    points = [{"checkpoint": name, "iteration": at, "subfolder": f"iter_{at}"} for name, at in steps.items()]
    model = {"model": "m", "path": "./model", "checkpoints": write_sheet("points.tsv", *points), "batch_ramp": "e2lm"}
    row = {"benchmark": "animals", "task": "pets", "include_path": write_pets(tmp_path / "tasks"), "metric": "acc_norm"}
    sheets = {"models": write_sheet("models.tsv", model)}
    sheets["benchmarks"] = write_sheet("benchmarks.tsv", row | {"num_fewshot": 2, "mutual_information": 1})
    run = build_run({"name": "toy", "studies": ["signal"], **sheets, "evaluation": {"device": "cpu"}}, "toy")
    record_model(run, "m")
    return record_benchmark(run, "animals")


def test_from_the_sheet_to_the_report(workspace):
    run_all(workspace, "evaluate_model")
    scores = merged(workspace)
    assert list(scores["checkpoint"].unique()) == ["early", "final"]
    assert list(scores["tokens_b"].unique()) == pytest.approx([10 * 256 * 4096 / 1e9, 20 * 256 * 4096 / 1e9])
    assert set(scores["metric"]) == {"acc,none", "acc_norm,none", "acc_mutual_info,none"}
    assert set(scores["n_items"]) == {sum(SIZES.values())}
    merged(workspace, "items")
    answers = read_benchmark_items(Path("tables") / "items.parquet", "animals")
    assert set(answers.subjects) == {f"pets_{name}" for name in SIZES}
    texts = read_documents(workspace.split_path("animals", "test").with_name("documents.parquet"), "animals")
    assert set(texts["doc_id"]) == set(answers.doc_ids) and all(texts["prompt"].str.count("Question:") == 3)


def test_examples_are_part_of_the_recipe(workspace):
    (job,) = workspace.grid.jobs.values()
    cell = job.cells[0]
    before = workspace.address(cell).folder
    assert workspace.recipe(cell)["num_fewshot"] == 2 and workspace.recipe(cell)["mutual_information"] is True
    path = Path("tasks/data/beta/train.jsonl")
    first = json.loads(path.read_text().partition("\n")[0])
    path.write_text(path.read_text().replace(first["name"], "Somebody", 1))
    run_all(workspace, "evaluate_model")
    entries = pd.DataFrame(read_json(Path(workspace.grid.manifests(job)[1]))["cells"])
    assert entries["error"].str.contains("its few-shot examples changed after they were recorded").all()
    assert record_benchmark(workspace.run, "animals").address(cell).folder != before


# MMLU in its letter and its cloze format, and the tasks of the three teams of the early-training competition
EARLY_TRAINING = {
    "mmlu": ("acc,none", 57, " A"),
    "mmlu_social_sciences": ("acc,none", 12, " A"),
    "mmlu_continuation": ("acc_norm,none", 57, " red 200"),
    "mmlu_early_training": ("likelihood,none", 1, " red 200"),
    "noor": ("acc,none", 12, " red 200"),
    "sciknoweval_mcqa": ("acc,none", 4, " red 200"),
}
SLOW = ("mmlu", "mmlu_continuation", "noor")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EARLY_TRAINING]
)
def test_tasks_of_the_early_training_competition(name, monkeypatch, model_folders):
    """By name, five examples, in every subject; the metric's mean over items is the score."""

    def question(number: int, subject: str) -> dict:
        choices = [f"{color} {number}" for color in ("red", "green", "blue", "gray")]
        asked = {"question": f" Which {subject} is {number}?", "subject": subject}
        return asked | {"choices": choices, "answer": number % 4}

    def fake(path, name=None, **_):
        splits = {"dev": range(5), "validation": range(100, 103), "test": range(200, 204)}
        return data_of({split: [question(n, name or "physics") for n in numbers] for split, numbers in splits.items()})

    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", fake)
    metric, subjects, continuation = EARLY_TRAINING[name]
    found = prefetch_benchmark(Benchmark(benchmark=name, metric=metric, num_fewshot=5, mutual_information=True))
    assert found["documents"]["test"] == 4 * subjects and found["fewshot"] is not None
    task = load_task(TaskRecord.from_json(found["record"]), num_fewshot=5)
    split = make_splits(task, test_only=True).test
    lm, docs = load_toy(model_folders["gpt2"], max_length=96), documents(task, split)
    context, first = prepare_requests(lm, task, docs).requests[0][0].args
    assert context.count("Answer:") == 6 and first == continuation
    scored = evaluate(lm, task, toy_world.head_of(docs, 12), metric=metric)
    assert scored.metrics[metric][0] == pytest.approx(scored.items["correct"].mean())
    assert len(split.addresses) == 4 * subjects == len(set(split.addresses))


SIZES = {"alpha": 14, "beta": 9, "gamma": 5}
TASK = """
task: pets_{name}
tag: pets_tag
dataset_path: json
dataset_kwargs: {files}
output_type: multiple_choice
description: "About {name}.\\n\\n"
doc_to_text: "Question: what is the color of {{{{name}}}}?\\nAnswer:"
doc_to_choice: choices
doc_to_target: gold
training_split: train
test_split: test
fewshot_split: train
{more}
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
GROUPS = {
    # a nested group with a file of its own, an inline one, and an override of a task's settings
    "pets": """
group: pets
task:
  - pets_inner
  - group: inline
    task: [{task: pets_gamma, description: "About small ones."}]
aggregate_metric_list: [{metric: acc, weight_by_size: true}, {metric: acc_norm, weight_by_size: false}]
metadata: {version: 3}
""",
    "pets_inner": "group: pets_inner\ntask: [pets_alpha, pets_beta]\n",
    "pets_mixed": "group: pets_mixed\ntask: [pets_alpha, pets_written]\n",
    "pets_broken": "group: pets_broken\ntask: [pets_alpha, pets_omega]\n",
}
WRITTEN = "task: pets_written\noutput_type: generate_until\ndataset_path: json\n"


def write_pets(folder: Path) -> Path:
    """Three tasks of unequal size over local JSON lines; `beta` shows the first examples, the others draw them."""
    for name, size in SIZES.items():
        files = {split: str(folder / "data" / name / f"{split}.jsonl") for split in ("train", "test")}
        for split in files:
            found = [{**row, "name": f"{row['name']}{name}"} for row in toy_rows(split)]
            (folder / "data" / name).mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row) + "\n" for row in found[: size if split == "test" else 12]]
            (folder / "data" / name / f"{split}.jsonl").write_text("".join(lines))
        more = "fewshot_config: {sampler: first_n}" if name == "beta" else ""
        text = TASK.format(name=name, files=json.dumps({"data_files": files}), more=more)
        (folder / f"pets_{name}.yaml").write_text(text.lstrip())
    for name, text in GROUPS.items():
        (folder / f"{name}.yaml").write_text(text.lstrip())
    (folder / "written.yaml").write_text(WRITTEN)
    return folder


def written_task(folder, name: str, **options):
    return load_task(find_task(name, write_toy_tasks(folder, **options)))


def test_own_splits_are_kept(toy_task):
    splits = make_splits(toy_task("toy_choice"))
    assert splits.train.addresses == tuple(f"train:{row}" for row in range(24))
    assert splits.validation.addresses == tuple(f"validation:{row}" for row in range(10))
    assert splits.test.addresses == tuple(f"test:{row}" for row in range(14))
    assert splits.train.rule == "the task's own splits"


def kinds(split: Split) -> set[str]:
    return {address.split(":")[0] for address in split.addresses}


def test_without_test_split_validation_is_scored_and_a_fifth_of_train_validates(tmp_path):
    task = written_task(tmp_path, "toy_choice", splits=("train", "validation"))  # the shape of GLUE's tasks
    splits = make_splits(task)
    assert [kinds(split) for split in splits] == [{"train"}, {"train"}, {"validation"}]
    assert (len(splits.train.addresses), len(splits.validation.addresses)) == (19, 5)  # round(0.2 * 24) = 5
    assert not set(splits.train.addresses) & set(splits.validation.addresses)
    assert make_splits(task).train == splits.train
    assert make_splits(task, seed=1).train.addresses != splits.train.addresses
    # medmcqa: one split that is named twice is not validation
    path = write_toy_tasks(tmp_path) / "toy_choice.yaml"
    path.write_text(path.read_text().replace("test_split: test", "test_split: validation"))
    splits = make_splits(load_task(find_task("toy_choice", tmp_path)))
    assert splits.validation.rule == "20% of train becomes validation"
    assert kinds(splits.validation) == {"train"} and len(splits.test.addresses) == 10


def test_question_task_without_train_only_tests(tmp_path):
    task = written_task(tmp_path, "toy_choice", splits=("test",))
    with pytest.raises(InputError, match="toy_choice: it has no training documents"):
        make_splits(task)
    splits = make_splits(task, test_only=True)
    assert splits.train is None and splits.validation is None and len(splits.test.addresses) == 14


def overlapping(split: str) -> list[dict]:
    """Test's first question is also validation's last, and train's first in other case, spacing and label."""
    rows = [row | {"id": f"{split}-{number}"} for number, row in enumerate(toy_rows(split))]
    test = toy_rows("test")[0]
    if split == "validation":
        rows[-1] = test | {"id": "other"}
    if split == "train":
        rows[0] = test | {"name": f"  {test['name'].upper()}", "gold": (test["gold"] + 1) % 4, "id": "other"}
        rows[1] = rows[1] | {"id": "test-3"}
        rows[2] = toy_rows("validation")[4] | {"id": "other"}
    return rows


def test_overlap_leaves_the_lower_split_only(tmp_path):
    task = written_task(tmp_path, "toy_choice", rows=overlapping)
    with pytest.raises(InputError, match=r"1 of 10 rows of the validation split occur in test \(1 by text"):
        make_splits(task)
    splits = make_splits(task, allow_overlap=True)
    assert len(splits.test.addresses) == 14
    assert splits.validation.addresses == tuple(f"validation:{row}" for row in range(9))
    assert splits.train.addresses == tuple(f"train:{row}" for row in range(3, 24))
    assert (splits.train.removed_by_text, splits.train.removed_by_id) == (2, 1)


def test_caps_are_prefixes_of_one_permutation(toy_task):
    task = toy_task("toy_choice")
    large, small = make_splits(task, caps=(12, 6, 8)), make_splits(task, caps=(5, 3, 4))
    for more, less, counts in zip(large, small, ((12, 5), (6, 3), (8, 4)), strict=True):
        assert (len(more.addresses), len(less.addresses)) == counts
        assert set(less.addresses) < set(more.addresses)


def test_json_round_trip_and_tampering(toy_task):
    split = make_splits(toy_task("toy_blank")).train
    record = json.loads(json.dumps(split.to_json()))
    assert Split.from_json(record) == split
    record["hashes"][0], record["hashes"][1] = record["hashes"][1], record["hashes"][0]
    for changed in (record, record | {"addresses": record["addresses"][1:]}):
        with pytest.raises(CellError, match="changed after it was written"):
            Split.from_json(changed)


def test_changed_data_names_the_row(tmp_path):
    splits = make_splits(written_task(tmp_path / "a", "toy_choice"))

    def changed(split: str) -> list[dict]:
        rows = toy_rows(split)
        rows[6]["gold"] = (rows[6]["gold"] + (split == "validation")) % 4
        return rows

    task = written_task(tmp_path / "b", "toy_choice", rows=changed)
    assert len(documents(task, splits.train)) == 24
    with pytest.raises(CellError, match="document validation:6 changed"):
        documents(task, splits.validation)


def test_lost_rows_fail_the_cells_that_read_them_and_no_other(start, tmp_path):
    workspace = start()
    rows_of_test = tmp_path / "tasks/data/test.jsonl"
    rows_of_test.write_text("".join(rows_of_test.read_text().splitlines(keepends=True)[:-1]))
    run_all(workspace, "evaluate_model")
    (job,) = jobs_of(workspace, "evaluate_model")
    validation, test = (read_manifest(path)[0] for path in sorted(workspace.grid.manifests(job), reverse=True))
    assert (validation.status, test.status) == ("done", "failed")
    assert "there is no document test:9, only 9" in test.error and "split it again" in test.hint


def test_reading_train_and_validation_never_reads_test(toy_task):
    task = toy_task("toy_choice")
    splits = make_splits(task)

    def forbidden():
        raise AssertionError("the test split was read")

    task.test_docs = forbidden
    assert len(documents(task, splits.train)) + len(documents(task, splits.validation)) == 34


def test_empty_and_broken_rows(tmp_path):
    with pytest.raises(InputError):
        make_splits(written_task(tmp_path / "a", "toy_choice", rows=lambda s: toy_rows(s) if s == "test" else []))

    def broken(split: str) -> list[dict]:
        rows = toy_rows(split)
        rows[5] |= {"choices": None} if split == "train" else {}
        return rows

    with pytest.raises(InputError, match="toy_choice: train row 5 cannot be rendered"):
        make_splits(written_task(tmp_path / "b", "toy_choice", rows=broken))


TEXTS = [f'Letter {number}: "{{{{ no template }}}}" and {"a word " * (1 + number % 9)}.\n' for number in range(30)]


def write_corpus(kind: str, texts=TEXTS) -> str:
    """The texts as a corpus of one kind in the working directory; its path."""
    if kind == "txt":
        Path("texts").mkdir()
        for number, text in enumerate(texts):
            Path(f"texts/{number:02}.txt").write_text(text, newline="")
        return "texts"
    if kind == "parquet":
        pd.DataFrame({"id": range(len(texts)), "body": texts}).to_parquet("texts.parquet")
        return "texts.parquet"
    toy_world.write_lines("texts.jsonl", [{"body": text} for text in texts])
    return "texts.jsonl"


pytestmark = pytest.mark.usefixtures("start")  # whose working directory is empty


def row(corpus: str, **more):
    columns = {"benchmark": "letters", "corpus": corpus, "text_column": "body", **more}
    return read_benchmarks(write_sheet("b.tsv", columns), "run")["letters"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_three_kinds_of_files_are_the_same_task(kind, llama):
    found = row(write_corpus(kind))
    assert found.include_path == "results/run/corpora/letters" and not found.higher_is_better
    record = prefetch_benchmark(found)
    assert record["documents"] == {"test": 30} and record["output_type"] == "loglikelihood_rolling"
    task = load_task(TaskRecord.from_json(record["record"]))
    splits = make_splits(task)
    parts = [documents(task, split) for split in splits]
    assert [len(part) for part in parts] == [24, 3, 3] and splits.test.rule == "8:1:1 of the one split"
    texts = [[task.doc_to_target(doc) for doc in part.docs] for part in parts]
    assert sorted(text for part in texts for text in part) == sorted(TEXTS)
    result = evaluate(llama, task, parts[2], metric=found.metric)
    nats = sum(lls[0] for lls in result.items.choice_loglikelihoods)
    size = sum(len(text.encode()) for text in texts[2])
    assert result.metrics["bits_per_byte,none"][0] == pytest.approx(-nats / math.log(2) / size, rel=1e-12)


def test_blank_documents_are_left_out_and_reports_read_the_same_row():
    record = prefetch_benchmark(row(write_corpus("jsonl", [*TEXTS, " \n", ""])))
    splits = make_splits(load_task(TaskRecord.from_json(record["record"])))
    assert sum(len(split.addresses) for split in splits) == 30
    (facts,) = read_benchmark_facts("b.tsv").itertuples()
    assert (facts.metric, facts.output_type) == ("bits_per_byte,none", "loglikelihood_rolling")
    assert not facts.higher_is_better


BAD_CORPORA = [
    ("texts.jsonl", '{"body": "a"}\n{"body": 3}\n', r"texts.jsonl, row 2, column 'body', value '3': not a text"),
    ("texts.jsonl", '{"body": "a"}\n{"boby": "b"}\n', r"row 2, column 'body', value 'None': not a text"),
    ("texts.jsonl", '{"boby": "a"}\n', r"the column 'body'.*did you mean 'boby'"),
    ("texts.jsonl", '{"body": "a"}\n["b"]\n', r"JSON parse error"),
    ("texts.jsonl", '{"body": "a"}\n{"body": \n', r"texts.jsonl, line 2: not JSON"),
    ("texts.jsonl", '{"body": "a"}\n{"body": "b\\ud800"}\n', r"surrogate pair"),
    ("texts.jsonl", '{"body": "a"}\n' * 9, r"texts.jsonl: 9 documents with text \(0 blank\), fewer than 10"),
    ("none.jsonl", None, "no such file or folder"),
    ("texts.csv", "a", "not a kind of corpus"),
    ("texts.parquet", "a", "cannot build the task"),
    (".", None, "no .txt file in it"),
]


@pytest.mark.parametrize(("corpus", "content", "problem"), BAD_CORPORA)
def test_a_bad_corpus_is_named(corpus, content, problem):
    if content is not None:
        Path(corpus).write_text(content)
    with pytest.raises(InputError, match=problem):
        prefetch_benchmark(row(corpus))
    with pytest.raises(InputError, match="column 'task', value 'arc_easy': not for a corpus"):
        row(corpus, task="arc_easy")
