"""The sheets of the published grids: facts of the papers, and tasks that exist in the pinned lm-eval.

Those of train before test hold what the published files hold."""

import csv
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from lm_validity.config.load import load_run
from lm_validity.config.sections import DEFAULT_SIZE_CLASSES
from lm_validity.config.sheets import read_benchmarks, read_models

PAPER = Path(__file__).parents[2] / "config" / "paper"
PUBLISHED = PAPER.parents[1] / "examples" / "published"
MODELS = PAPER / "train_before_test_models.tsv"
BENCHMARKS = PAPER / "train_before_test_benchmarks.tsv"
CANDIDATES = PAPER / "train_before_test_candidates.tsv"
EARLY_MODELS = PAPER / "early_training_models.tsv"
EARLY_BENCHMARKS = PAPER / "early_training_benchmarks.tsv"

EXCLUDED = {
    "generation": "drop coqa record babi webqs triviaqa fld_default",
    "no improvement": "medqa_4options logiqa mutual mela_en swag",
    "negative agreement": "paws_en",
}


def rows(path: Path, delimiter: str = "\t") -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter=delimiter))


@pytest.mark.published
def test_models_agree():
    sheet = {row["path"]: row for row in rows(MODELS)}
    published = {row["model_id"]: row for row in rows(PUBLISHED / "models.csv", ",")}
    assert list(sheet) == list(published)
    for hub_id, row in published.items():
        ours = sheet[hub_id]
        for column in ("family", "instruction_tuned", "in_compute_plot"):
            assert ours[column] == row[column], (hub_id, column)
        assert float(ours["parameters_b"]) == float(row["params_B"]), hub_id
        assert float(ours["tokens_b"]) == float(row["tokens_B"]), hub_id
        # the published figures label GPT-2 medium, which has 355 million parameters, as 335M
        assert ours["display_name"] == row["display_name"].replace("335M", "355M"), hub_id


@pytest.mark.published
def test_benchmarks_agree():
    sheet = rows(BENCHMARKS)
    published = [row for row in rows(PUBLISHED / "benchmarks.csv", ",") if row["category"] != "Perplexity"]
    assert [row["benchmark"] for row in sheet] == [row["task"] for row in published]
    same = dict.fromkeys(("category", "metric", "output_type", "higher_is_better")) | {
        "published_train_rows": "train_rows",
        "published_train_used": "train_used",
        "published_validation_used": "valid_used",
        "published_test_rows": "test_rows_inferred_from_stderr",
    }
    for ours, theirs in zip(sheet, published, strict=True):
        for column, source in same.items():
            assert ours[column] == theirs[source or column], (ours["benchmark"], column)
        assert theirs["test_split_scored"].startswith(ours["published_test_split"])
        assert theirs["valid_source"].startswith("own") == (ours["published_validation_source"] == "own split")


class TestModels:
    def test_ids_names_and_size_classes_follow_from_the_hub_id_and_the_parameters(self):
        bounds = (("tiny", 0.2), ("small", 1), ("medium", 4), ("large", 10), ("huge", float("inf")))
        for model in rows(MODELS):
            tuned = model["path"].endswith(("-Chat", "-Instruct", "-it"))
            assert tuned == (model["instruction_tuned"] == "1") == model["display_name"].endswith("-IT"), model["model"]
            assert model["model"] == model["path"].split("/")[1].lower()
            parameters = float(model["parameters_b"])
            assert model["size_class"] == next(name for name, top in bounds if parameters < top), model["model"]

    def test_the_workflow_reads_them(self):
        models = read_models(MODELS, run="paper", size_classes=DEFAULT_SIZE_CLASSES)
        assert len(models) == 61
        assert {model.dtype for model in models.values()} == {"bfloat16", "float32"}
        # logits of about -65, where bfloat16 moves in steps of a quarter of a nat and more
        in_float32 = {name for name, model in models.items() if model.dtype == "float32"}
        assert in_float32 == {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}
        # empty: the hub's main branch, resolved to a commit when the model is fetched
        assert {model.revision for model in models.values()} == {None}
        assert models["pythia-12b"].parameters_b == 12 and models["pythia-12b"].tokens_b == 300


class TestBenchmarks:
    def test_the_workflow_reads_them(self):
        benchmarks = read_benchmarks(BENCHMARKS, run="paper")
        assert {row.include_path for row in benchmarks.values()} == {None}
        read_benchmarks(CANDIDATES, run="paper")

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
    def test_output_type_metric_and_training_split_are_the_tasks_own(self, installed_tasks):
        for row in rows(CANDIDATES):
            config = read_task(installed_tasks[row["task"]])
            # lm-eval's default where the YAML has none
            assert row["output_type"] == config.get("output_type", "generate_until"), row["task"]
            assert row["metric"] in metric_keys(config) and config.get("training_split"), row["task"]

    def test_the_published_validation_source_is_the_tasks_own_split_or_carved_from_train(self, installed_tasks):
        shared = set()
        for row in rows(BENCHMARKS):
            config = read_task(installed_tasks[row["task"]])
            validation, test = config.get("validation_split"), config.get("test_split")
            source = "own split" if validation and test else "20% of train"
            assert row["published_validation_source"] == source and row["published_test_split"] == (test or validation)
            shared |= {row["task"]} if validation == test else set()
        assert shared == {"medmcqa"}


@pytest.fixture(scope="module")
def run():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(PAPER.parents[1])
        yield load_run("config/paper/early_training.yaml")


class TestEarlyTraining:
    """The early-training competition: 6 models x 27 released checkpoints, its baselines and winners."""

    def test_three_sizes_of_two_architectures(self, run):
        assert [(model.size, model.architecture) for model in run.models.values()] == [
            (size, architecture) for size in ("500m", "1b", "3b") for architecture in ("arch1", "arch2")
        ]
        for model in run.models.values():
            assert model.path == f"tiiuae/{model.model}" and model.model == f"dense-{model.size}-{model.architecture}"
            assert (model.training_data, model.dtype, model.instruction_tuned) == ("science", "bfloat16", False)
            assert model.tokens_b == pytest.approx(197.60, abs=0.005)
        assert any(line.startswith("# dense-1b-arch1-web\t") for line in EARLY_MODELS.read_text().splitlines())

    def test_all_released_checkpoints_with_their_tokens(self, run):
        for model in run.models.values():
            points = model.checkpoints
            assert [point.iteration for point in points] == list(range(2000, 54001, 2000)) and len(points) == 27
            assert points[-1].checkpoint == "final"
            assert all(point.subfolder == f"iter_{point.iteration:07d}" for point in points)
            tokens = {point.iteration: point.tokens_b for point in points}
            anchors = {4000: 4.194, 8000: 10.1106, 16000: 38.22, 32000: 105.33, 54000: 197.60}
            assert {iteration: tokens[iteration] for iteration in anchors} == pytest.approx(anchors, abs=0.005)

    def test_baselines_and_winners(self, run):
        roles = {row["benchmark"]: row["published_role"] for row in rows(EARLY_BENCHMARKS)}
        winners = {"mmlu_early_training", "sciknoweval_mcqa", "noor"}
        assert {name for name, role in roles.items() if role == "winner"} == winners
        assert {name for name, role in roles.items() if role == "baseline"} == set(run.benchmarks) - winners
        five = {"mmlu", "mmlu_var"} | winners
        assert {name for name, row in run.benchmarks.items() if row.num_fewshot == 5} == five
        assert run.configuration.splits.test >= 14_042  # all of MMLU

    @pytest.mark.slow
    def test_tasks_output_types_and_metrics_are_those_of_the_pinned_lm_eval(self, run):
        pytest.importorskip("lm_eval")
        from lm_validity.cells.tasks.finding import find_task

        subjects = {}
        for name, row in run.benchmarks.items():
            record = find_task(row.task)
            assert row.output_type == record.output_type
            assert record.higher_is_better[row.metric] == row.higher_is_better
            subjects[name] = len(record.members)
        groups = {"mmlu": 57, "mmlu_var": 57, "sciknoweval_mcqa": 4, "noor": 12}
        assert {name: count for name, count in subjects.items() if count} == groups
