"""JSON files of no known format: read where --format json asks for it, and never otherwise."""

import json

import pytest
from tests.unit.tables.conftest import options_of, read_files

from lm_validity.errors import InputError
from lm_validity.tables.decisions import LEFT_OUT
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions


@pytest.fixture
def read(tmp_path):
    def make(files: dict, **options):
        for name, document in files.items():
            (tmp_path / name).write_text(json.dumps(document))
        log = ImportLog(strict=True)
        return read_files([tmp_path], options_of(**{"format": "json", **options}), log), log

    return make


SCORES = {
    "name": "eval/heavy",
    "eval_metrics": {"icl": {"arc": 0.5, "boolq": 0.75, "none": None}, "ppl": {"a": 9, "b": 2}},
}
FACTS = {"name": "m-1", "hyperparameters": {"params": 411616256, "tokens": 2058081280, "lr": 0.003, "steps": [1, 2]}}


def test_scores_and_facts_of_one_model_in_two_files(read):
    scores, log = read({"eval_m-1.json": SCORES, "m-1.json": FACTS}, path="eval_{model}.json")
    assert scores[["model", "benchmark", "value"]].values.tolist() == [["m-1", "arc", 0.5], ["m-1", "boolq", 0.75]]
    assert log.facts["m-1"]["parameters_b"] == pytest.approx(0.411616256) and log.facts["m-1"]["lr"] == 0.003
    assert log.facts["m-1"]["tokens_b"] == pytest.approx(2.05808128)
    percent = {"model": "a", "scores": {"x": 50, "y": 75}}
    scores, _ = read({"p.json": percent}, path="eval_{model}.json", strict=False)
    assert scores.set_index("benchmark").at["y", "value"] == 0.75
    scores, _ = read({"p.json": percent}, percent=True, path="eval_{model}.json", strict=False)
    assert scores.set_index("benchmark").at["x", "value"] == 0.5


@pytest.mark.parametrize(
    "document", [[1, 2], {"a": {"x": 0.5}}, {"a": {"x": 0.5, "y": "z"}}, {"s": {"x": 0.5, "y": 1}}, 7]
)
def test_files_without_scores_or_a_name(read, document):
    with pytest.raises(InputError, match=r"x\.json"):
        read({"x.json": document})


def test_without_the_option_it_is_of_no_known_format(read):
    with pytest.raises(InputError, match="of no known format"):
        read({"m.json": SCORES}, format=None)


def test_settings_beside_scores_are_no_models(tmp_path):
    """An object of objects is one of models where something in it is a known task, or metrics stand beside others."""
    table = [f"{model},arc_easy,acc,{value}" for model, value in (("a", 0.5), ("b", 0.6))]
    (tmp_path / "scores.csv").write_text("\n".join(["model,benchmark,metric,value", *table]) + "\n")
    settings = {"optimizer": {"beta1": 0.9, "beta2": 0.95}, "data": {"web": 0.3, "code": 0.1}}
    (tmp_path / "hparams.json").write_text(json.dumps(settings))
    (tmp_path / "by_benchmark.json").write_text(json.dumps({"one": {"acc": 0.4}, "two": {"acc": 0.3}}))
    (tmp_path / "with_errors.json").write_text(
        json.dumps({name: {"acc": 0.4, "stderr": 0.01} for name in ("q1", "q2")})
    )
    (tmp_path / "models.json").write_text(
        json.dumps({"m1": {"GSM8K": 0.4}, "m2": {"GSM8K": 0.3}, "x": {"model": "m3", "GSM8K": 0.2}})
    )
    scores = read_files([tmp_path], ImportOptions(), ImportLog(strict=False))
    found = scores.set_index(["model", "benchmark"])["value"].to_dict()
    assert {(model, benchmark.lower()): value for (model, benchmark), value in found.items()} == {
        ("a", "arc_easy"): 0.5,
        ("b", "arc_easy"): 0.6,
        ("m1", "gsm8k"): 0.4,
        ("m2", "gsm8k"): 0.3,
        ("m3", "gsm8k"): 0.2,
    }


def test_a_rate_beside_another_metric_is_read_too(tmp_path):
    records = [
        {"model": f"m{number}", "task": "search", "metrics": {"hit_rate": hits, "f1": f1}}
        for number, (hits, f1) in enumerate(((0.5, 0.4), (0.7, 0.3)))
    ]
    (tmp_path / "records.json").write_text(json.dumps(records))
    scores = read_files([tmp_path], ImportOptions(), ImportLog(strict=False))
    found = {(row.model, row.metric.partition(",")[0]): row.value for row in scores.itertuples()}
    assert found == {("m0", "hit_rate"): 0.5, ("m0", "f1"): 0.4, ("m1", "hit_rate"): 0.7, ("m1", "f1"): 0.3}


TWO = {("ant-1b", "mmlu"): 0.64, ("ant-1b", "gsm8k"): 0.52, ("bee-7b", "mmlu"): 0.7, ("bee-7b", "gsm8k"): 0.61}


def by(first: int, make) -> dict:
    """The scores of TWO in objects by model (0) or by benchmark (1), then by the other."""
    outer: dict = {}
    for key, value in TWO.items():
        outer.setdefault(key[first], {})[key[1 - first]] = make(value)
    return outer


@pytest.mark.parametrize(
    ("document", "with_errors"),
    [
        (by(0, float), False),
        (by(1, float), False),
        (by(0, lambda value: {"acc": value, "acc_stderr": value / 100}), True),
        (by(1, lambda value: {"acc": value, "acc_stderr": value / 100}), True),
        ([{"model": model, "results": scores, "tags": ["x"]} for model, scores in by(0, float).items()], False),
        ([{"model": model, "config": {"seed": 1}} | scores for model, scores in by(0, float).items()], False),
        ({"date": "today", "models": [{"name": m, "params": 7, "scores": s} for m, s in by(0, float).items()]}, False),
        ({m: {"config": {"seed": 1, "lr": 0.1}, "results": s} for m, s in by(0, float).items()}, False),
        (
            [{"model": m, "scores": s} for m, s in by(0, lambda value: {"acc": value, "stderr": value / 100}).items()],
            True,
        ),
    ],
)
def test_objects_by_model_and_benchmark_in_either_order(tmp_path, document, with_errors):
    (tmp_path / "all.json").write_text(json.dumps(document))
    scores = read_files([tmp_path], ImportOptions(), ImportLog(strict=True))
    assert scores.set_index(["model", "benchmark"])["value"].to_dict() == TWO
    errors = scores["value"] / 100 if with_errors else scores["value"] * float("nan")
    assert scores["stderr"].tolist() == pytest.approx(errors.tolist(), nan_ok=True)


def test_metrics_of_one_models_benchmarks_need_not_be_the_same(tmp_path):
    document = {"mmlu": {"acc": 0.64, "acc_stderr": 0.004}, "gsm8k": {"exact_match": 0.5, "n_items": 200}}
    (tmp_path / "ant.json").write_text(json.dumps(document))
    scores = read_files([tmp_path], ImportOptions(), ImportLog(strict=True)).set_index("benchmark")
    assert scores["value"].to_dict() == {"mmlu": 0.64, "gsm8k": 0.5} and set(scores["model"]) == {"ant"}
    assert scores.at["mmlu", "stderr"] == 0.004 and scores.at["gsm8k", "n_items"] == 200


@pytest.mark.parametrize(
    "document",
    [
        {"mmlu": {"num_fewshot": 5, "batch_size": 8}, "gsm8k": {"num_fewshot": 8, "batch_size": 4}},
        {"trainer": {"optimizer": {"lr": 0.1}}, "data": {"mix": {"web": 0.4, "code": 0.6}}},
        [
            {"name": "a", "sizes": {"layers": 4}, "data": {"web": 0.4}},
            {"name": "b", "sizes": {"layers": 8}, "data": {}},
        ],
    ],
)
def test_objects_of_settings_are_no_scores(tmp_path, document):
    (tmp_path / "all.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="of no known format"):
        read_files([tmp_path], ImportOptions(), ImportLog(strict=True))


def test_which_of_two_levels_are_models_is_asked_where_no_task_is_known(tmp_path):
    """Metrics of two quizzes and two models of names that say nothing; the reader swaps them."""
    (tmp_path / "all.json").write_text(
        json.dumps(
            {"red": {"ant": {"acc": 0.5}, "bee": {"acc": 0.6}}, "sky": {"ant": {"acc": 0.4}, "bee": {"acc": 0.7}}}
        )
    )
    scores = read_files([tmp_path / "all.json"], ImportOptions(), log := ImportLog())
    assert set(scores["model"]) == {"red", "sky"}
    decision = next(each for each in log.reading.decisions if each.decided == "model")
    assert (decision.kind, decision.alternatives) == ("unsure", "benchmark")
    rows = f"column\t{decision.where}\tbenchmark\ncolumn\tlevel 2\tmodel\n"
    (tmp_path / "r.tsv").write_text(f"what\twhere\tdecided\n{rows}")
    options = ImportOptions(reading=tmp_path / "r.tsv")
    scores = read_files([tmp_path / "all.json"], options, log := ImportLog()).set_index(["model", "benchmark"])
    assert scores["value"].to_dict() == {
        ("ant", "red"): 0.5, ("bee", "red"): 0.6, ("ant", "sky"): 0.4, ("bee", "sky"): 0.7,
    }  # fmt: skip
    assert "unsure" not in {each.kind for each in log.reading.decisions if each.what == "column"}


@pytest.mark.parametrize("name", ["all.json", "all.jsonl"])
def test_numbers_as_texts_are_read_and_objects_beside_the_scores_named(tmp_path, name):
    documents = [
        {"model": "ant", "results": {"mmlu": "64%", "gsm8k": "52"}, "tuned": {"mmlu": 0.7}, "config": {"lr": 0.1}},
        {"model": "bee", "results": {"mmlu": "70", "gsm8k": "N/A"}, "tuned": {"mmlu": 0.8}},
    ]
    lines = "\n".join(map(json.dumps, documents))
    (tmp_path / name).write_text(json.dumps(documents) if name == "all.json" else lines)
    scores = read_files([tmp_path / name], ImportOptions(), log := ImportLog())
    found = scores.set_index(["model", "benchmark"])["value"].to_dict()
    assert found == pytest.approx({("ant", "mmlu"): 0.64, ("ant", "gsm8k"): 0.52, ("bee", "mmlu"): 0.7})
    assert [each.where for each in log.reading.decisions if each.decided == "left out"] == ["tuned"]


def test_a_summary_beside_the_results_is_not_read(tmp_path):
    """A summary holds scores where no other object does."""
    extremes = {"best": 0.8, "worst": 0.1}
    documents = [
        {"model": "ant", "results": {"coins": 0.5, "tides": 0.4}, "summary": extremes},
        {"model": "bee", "results": {"coins": 0.6, "tides": 0.3}, "summary": extremes},
    ]
    (tmp_path / "all.json").write_text(json.dumps(documents))
    scores = read_files([tmp_path / "all.json"], ImportOptions(), log := ImportLog())
    expected = {("ant", "coins"): 0.5, ("ant", "tides"): 0.4, ("bee", "coins"): 0.6, ("bee", "tides"): 0.3}
    assert scores.set_index(["model", "benchmark"])["value"].to_dict() == expected
    assert [each.where for each in log.reading.decisions if each.decided == "left out"] == ["summary"]
    alone = [{"model": each["model"], "summary": each["results"], "config": {"lr": 0.1}} for each in documents]
    (tmp_path / "alone.json").write_text(json.dumps(alone))
    scores = read_files([tmp_path / "alone.json"], ImportOptions(), ImportLog())
    assert scores.set_index(["model", "benchmark"])["value"].to_dict() == expected


def test_settings_beside_a_score_are_no_scores(read):
    document = {"version": 2, "num_fewshot": 5, "seed": 42, "accuracy": 0.5, "accuracy_stderr": 0.01}
    scores, log = read({"a.json": document}, path="{model}.json")
    assert scores[["benchmark", "value"]].values.tolist() == [["accuracy", 0.5]]
    left = {each.where for each in log.reading.decisions if each.decided == "left out"}
    assert left == {"version", "num_fewshot", "seed", "accuracy_stderr"}
    scores, _ = read({"a.json": {"race_high": 0.4, "race_middle": 0.6, "limit": 1}}, path="{model}.json")
    assert scores.set_index("benchmark")["value"].to_dict() == {"race_high": 0.4, "race_middle": 0.6}


def test_separators_of_lines_within_a_text_cut_no_line(tmp_path):
    rows = [{"model": "ant\u2028one", "coins": 0.5, "tides": 0.4}, {"model": "bee\x85", "coins": 0.6, "tides": 0.3}]
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "all.jsonl").write_text(lines, encoding="utf-8", newline="")
    scores = read_files([tmp_path / "all.jsonl"], ImportOptions(), ImportLog())
    assert sorted(scores["value"]) == [0.3, 0.4, 0.5, 0.6] and scores["model"].nunique() == 2


@pytest.mark.parametrize("format_name", ["json", "nested"])
def test_of_objects_with_the_same_names_the_one_called_scores_holds_them(read, format_name):
    """Errors, counts and the scores of chance beside the scores are no benchmarks."""
    names = ("arc_easy", "gsm8k")
    beside = {"stderr": 0.01, "n_items": 900, "random": 0.25}
    document = {"model": "a", "scores": {"arc_easy": 0.5, "gsm8k": 0.75}}
    document |= {key: dict.fromkeys(names, value) for key, value in beside.items()}
    scores, log = read({"a.json": document}, format=format_name)
    assert scores[["benchmark", "value"]].values.tolist() == [["arc_easy", 0.5], ["gsm8k", 0.75]]
    assert {row.where for row in log.reading.decisions if row.kind == LEFT_OUT} >= {"stderr", "random"}


def test_values_of_tasks_without_a_metric_may_be_seconds(read):
    times = {"model": "a", "tasks": [{"task": "gsm8k", "value": 12.5}, {"task": "mmlu", "value": 80.5}], "unit": "s"}
    with pytest.raises(InputError, match=r"times\.json"):
        read({"times.json": times}, format=None)
    named = times | {"tasks": [row | {"metric": "acc"} for row in times["tasks"]]}
    scores = read({"times.json": named}, format=None)[0]
    assert scores["value"].tolist() == [0.125, 0.805] and set(scores["metric"]) == {"acc,none"}
