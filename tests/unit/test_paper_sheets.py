"""The sheets of the published grid: facts of the paper, and tasks that exist in the pinned lm-eval."""

import csv
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from lm_validity.config.sections import DEFAULT_SIZE_CLASSES
from lm_validity.config.sheets import read_benchmarks, read_models

PAPER = Path(__file__).parents[2] / "config" / "paper"
MODELS = PAPER / "train_before_test_models.tsv"
BENCHMARKS = PAPER / "train_before_test_benchmarks.tsv"
CANDIDATES = PAPER / "train_before_test_candidates.tsv"

CATEGORIES = {
    "LU": "mnli qnli rte cola sst2 mrpc qqp wic anli_r1",
    "CR": "winogrande commonsense_qa hellaswag social_iqa",
    "QA": "openbookqa nq_open boolq arc_easy arc_challenge",
    "PBC": "sciq piqa",
    "Math": "mathqa gsm8k",
    "Med": "medmcqa headqa_en",
}
EXCLUDED = {
    "generation": "drop coqa record babi webqs triviaqa fld_default",
    "no improvement": "medqa_4options logiqa mutual mela_en swag",
    "negative agreement": "paws_en",
}


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


class TestModels:
    def test_counts_of_the_paper(self):
        models = rows(MODELS)
        assert len(models) == 61
        assert Counter(model["family"] for model in models) == {
            "Qwen": 26,
            "Llama": 8,
            "Gemma": 8,
            "Pythia": 8,
            "Yi": 7,
            "GPT-2": 4,
        }
        assert sum(model["instruction_tuned"] == "1" for model in models) == 24
        assert sum(model["in_compute_plot"] == "1" for model in models) == 37

    def test_instruction_tuned_models_are_those_named_so(self):
        for model in rows(MODELS):
            tuned = model["path"].endswith(("-Chat", "-Instruct", "-it"))
            assert tuned == (model["instruction_tuned"] == "1"), model["model"]
            assert model["display_name"].endswith("-IT") == tuned, model["model"]

    def test_ids_are_unique_and_safe_in_a_path(self):
        models = rows(MODELS)
        for column in ("model", "path", "display_name"):
            assert len({model[column] for model in models}) == 61, column
        for model in models:
            assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", model["model"])
            # the id follows from the hub id by one rule, so that nobody has to look it up
            assert model["model"] == model["path"].split("/")[1].lower()

    def test_size_class_follows_from_the_parameters(self):
        bounds = (("tiny", 0.2), ("small", 1), ("medium", 4), ("large", 10), ("huge", float("inf")))
        for model in rows(MODELS):
            parameters = float(model["parameters_b"])
            assert model["size_class"] == next(name for name, top in bounds if parameters < top), model["model"]

    def test_the_workflow_reads_them(self):
        models = read_models(MODELS, run="paper", size_classes=DEFAULT_SIZE_CLASSES)
        assert len(models) == 61
        assert {model.dtype for model in models.values()} == {"bfloat16"}
        # empty: the hub's main branch, resolved to a commit when the model is fetched
        assert {model.revision for model in models.values()} == {None}
        assert models["pythia-12b"].parameters_b == 12 and models["pythia-12b"].tokens_b == 300


class TestBenchmarks:
    def test_the_24_by_category(self):
        found = {category: [] for category in CATEGORIES}
        for benchmark in rows(BENCHMARKS):
            found[benchmark["category"]].append(benchmark["benchmark"])
        assert found == {category: names.split() for category, names in CATEGORIES.items()}
        assert sum(map(len, found.values())) == 24

    def test_the_workflow_reads_them(self):
        benchmarks = read_benchmarks(BENCHMARKS, run="paper")
        generation = {name for name, row in benchmarks.items() if row.output_type == "generate_until"}
        assert generation == {"nq_open", "gsm8k"}
        assert all(row.higher_is_better for row in benchmarks.values())
        assert {row.include_path for row in benchmarks.values()} == {None}
        read_benchmarks(CANDIDATES, run="paper")

    def test_training_rows_reach_the_threshold_and_the_caps(self):
        for row in rows(BENCHMARKS):
            assert int(row["published_train_rows"]) >= 1_000
            assert int(row["published_train_used"]) <= 50_000
            assert int(row["published_validation_used"]) <= 1_000
            assert int(row["published_test_rows"]) <= 10_000

    def test_the_37_candidates_hold_the_24(self):
        candidates = rows(CANDIDATES)
        assert len(candidates) == 37
        assert Counter(row["published_kind"] for row in candidates) == {"likelihood": 28, "generation": 9}
        selected = [row for row in candidates if row["selected"] == "1"]
        chosen = {row["benchmark"]: row for row in rows(BENCHMARKS)}
        assert [row["benchmark"] for row in selected] == list(chosen)
        for row in selected:
            assert not row["exclusion"]
            for column in ("task", "category", "metric", "output_type", "higher_is_better"):
                assert row[column] == chosen[row["benchmark"]][column], row["benchmark"]

    def test_every_exclusion_has_the_papers_reason(self):
        excluded = [row for row in rows(CANDIDATES) if row["selected"] == "0"]
        assert len(excluded) == 13
        for reason, names in EXCLUDED.items():
            found = {row["benchmark"] for row in excluded if row["exclusion"].startswith(reason)}
            assert found == set(names.split())


class _Loader(yaml.SafeLoader):
    """Reads a task's YAML without importing the functions that `!function` names."""


_Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


def read_task(path: Path) -> dict:
    """A task's YAML with its `include` merged under it."""
    config = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    included = config.pop("include", None)
    return {**read_task(path.parent / included), **config} if included else config


def metric_keys(config: dict) -> set[str]:
    """The `metric,filter` keys under which lm-eval reports this task's scores."""
    filters = [one["name"] for one in config.get("filter_list", [])] or ["none"]
    return {f"{metric['metric']},{name}" for metric in config["metric_list"] for name in filters}


@pytest.fixture(scope="module")
def installed_tasks() -> dict[str, Path]:
    """Task name -> the YAML file of the installed lm-eval that defines it, found by text search."""
    if (lm_eval := find_spec("lm_eval")) is None:
        pytest.skip("lm_eval is not installed (extra `cells`)")
    tasks = Path(lm_eval.origin).parent / "tasks"
    wanted = {row["task"] for row in rows(CANDIDATES)}
    line = re.compile(r"^task:\s*[\"']?([A-Za-z0-9_.-]+)[\"']?\s*$", re.MULTILINE)
    found: dict[str, Path] = {}
    for path in tasks.rglob("*.yaml"):
        for name in wanted.intersection(line.findall(path.read_text(encoding="utf-8"))):
            assert name not in found, f"{name} is defined by {found[name]} and by {path}"
            found[name] = path
    return found


class TestInstalledTasks:
    def test_every_candidate_is_a_task_of_the_pinned_lm_eval(self, installed_tasks):
        assert {row["task"] for row in rows(CANDIDATES)} - set(installed_tasks) == set()

    def test_output_type_and_metric_are_the_tasks_own(self, installed_tasks):
        for row in rows(CANDIDATES):
            config = read_task(installed_tasks[row["task"]])
            # lm-eval's default where the YAML has none
            assert row["output_type"] == config.get("output_type", "generate_until"), row["task"]
            assert row["metric"] in metric_keys(config), row["task"]

    def test_every_task_has_a_training_split(self, installed_tasks):
        for row in rows(CANDIDATES):
            assert read_task(installed_tasks[row["task"]]).get("training_split"), row["task"]

    def test_the_published_validation_source_is_the_tasks_own_split_or_carved_from_train(self, installed_tasks):
        for row in rows(BENCHMARKS):
            config = read_task(installed_tasks[row["task"]])
            own = bool(config.get("validation_split")) and bool(config.get("test_split"))
            assert row["published_validation_source"] == ("own split" if own else "20% of train"), row["task"]
            test_split = config.get("test_split") or config["validation_split"]
            assert row["published_test_split"] == test_split, row["task"]

    def test_one_benchmark_shares_its_validation_and_test_split(self, installed_tasks):
        shared = set()
        for row in rows(BENCHMARKS):
            config = read_task(installed_tasks[row["task"]])
            if config.get("validation_split") == config.get("test_split"):
                shared.add(row["task"])
        assert shared == {"medmcqa"}
