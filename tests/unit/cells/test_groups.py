"""Groups of tasks and solved examples, against lm-eval itself; a run with both; and groups that lm-eval ships."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from shipped_data import data_of
from toy_run import merged, record_benchmark, record_model, run_all, write_sheet
from toy_world import all_documents, evaluate, head_of, lm_eval_itself, load_toy, toy_model, toy_rows

from lm_validity.cells.tasks.evaluation import prepare_requests, training_examples
from lm_validity.cells.tasks.finding import TaskRecord, find_task
from lm_validity.cells.tasks.splits import Split, documents, make_splits, prefetch_benchmark, write_documents
from lm_validity.cells.tasks.tasks import fewshot_digest, load_task
from lm_validity.config.load import build_run
from lm_validity.config.sheets import Benchmark
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.studies.signal.filters.kinds import Selection
from lm_validity.studies.signal.filters.recipe import Export, Recipe, selection_files, task_files, write_files
from lm_validity.tables.items import read_benchmark_items, read_documents


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
    scored = evaluate(lm, task, head_of(docs, 12), metric=metric)
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
