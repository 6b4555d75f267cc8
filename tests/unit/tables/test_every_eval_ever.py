"""Files of every_eval_ever: those of other converters read, ours written and read back."""

import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import put, read_files
from typer.testing import CliRunner

from lm_validity.cli import reports
from lm_validity.errors import InputError
from lm_validity.tables.formats.evaluations import with_directions, write_every_eval_ever
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import SCORES, read_scores, write_table

# What the format asks to be there, in the file and in parts of it
REQUIRED = {
    "schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "eval_library", "model_info",
    "evaluation_results",
}  # fmt: skip
OF_PARTS = {
    "source_metadata": {"source_type", "source_organization_name", "evaluator_relationship"},
    "model_info": {"name", "id", "additional_details"},
}
OF_RESULTS = {"evaluation_name", "source_data", "metric_config", "score_details"}


def result(name: str = "quiz", value: float = 0.5, metric: dict | None = None, **more) -> dict:
    config = {"lower_is_better": False} | ({"metric_id": "accuracy"} if metric is None else metric)
    return {
        "evaluation_name": name,
        "source_data": {"dataset_name": name, "source_type": "other"},
        "metric_config": config,
        "score_details": {"score": value},
        **more,
    }


def document(*results: dict, model: str = "org/a", **more) -> dict:
    return {
        "schema_version": "0.3.0",
        "evaluation_id": f"test/{model}/1",
        "retrieved_timestamp": "1770682486.623709",
        "source_metadata": {
            "source_type": "documentation",
            "source_organization_name": "me",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "unknown", "version": "unknown"},
        "model_info": {"name": model, "id": model, "additional_details": {}},
        "evaluation_results": list(results),
        **more,
    }


@pytest.fixture
def read(tmp_path):
    def make(*documents: dict, **options) -> tuple[pd.DataFrame, ImportLog]:
        for number, each in enumerate(documents):
            put(tmp_path / "in" / f"{number}.json", each)
        log = ImportLog(**options)
        return read_files([tmp_path / "in"], ImportOptions(), log), log

    return make


def test_a_file_of_another_converter(read):
    uncertainty = {"standard_error": {"value": 0.02}, "num_samples": 200}
    first = result(score_details={"score": 0.75, "uncertainty": uncertainty})
    first["generation_config"] = {"additional_details": {"num_fewshot": "5"}}
    second = result("wiki", 12.5, {"metric_name": "perplexity", "lower_is_better": True})
    scores, log = read(document(first, second))
    assert list(scores.columns) == SCORES.names and log.files == 1 and set(scores["model"]) == {"org/a"}
    row, other = (row for _, row in scores.iterrows())
    assert row[["benchmark", "metric", "value", "stderr", "n_items", "num_fewshot"]].tolist() == [
        "quiz", "accuracy,none", 0.75, 0.02, 200, 5,
    ]  # fmt: skip
    assert row["higher_is_better"] and not other["higher_is_better"] and other["metric"] == "perplexity,none"
    assert set(scores["source"]) == {"every_eval_ever"} and set(scores["checkpoint"]) == {"final"}


def test_lm_evals_filters_and_revisions(read):
    """What the format's own converter makes of lm-eval's files."""
    results = [
        result("sums/strict", 0.1, {"evaluation_description": "exact_match (filter: strict)"}),
        result("sums/flexible", 0.2, {"evaluation_description": "exact_match (filter: flexible)"}),
        result("arc_easy", 0.3, {"evaluation_description": "acc"}),
    ]
    info = {"name": "org/a", "id": "org/a"}
    info["additional_details"] = {"revision": "main", "model_args": "{'pretrained': 'org/a'}"}
    library = {"name": "lm_eval", "version": "0.4.9"}
    scores, _ = read(document(*results, eval_library=library, model_info=info))
    assert scores[["benchmark", "metric", "value"]].values.tolist() == [
        ["arc_easy", "acc,none", 0.3],
        ["sums", "exact_match,flexible", 0.2],
        ["sums", "exact_match,strict", 0.1],
    ]
    assert set(scores["checkpoint"]) == {"final"}
    info["additional_details"] = {"revision": "step1000"}
    scores, _ = read(document(*results, eval_library=library, model_info=info))
    assert set(scores["iteration"]) == {1000}


def test_an_older_file_is_read_and_a_foreign_one_is_skipped(read):
    old = document(result(metric={}))
    del old["eval_library"], old["model_info"]["additional_details"]
    foreign = {"results": {}}, document(result(value="high")), document(model="")
    scores, log = read(old | {"schema_version": "0.2.0"}, *foreign)
    assert scores["value"].tolist() == [0.5] and scores["metric"].isna().all() and len(log.skipped) == 3


def our_scores() -> pd.DataFrame:
    common = {"prompt": "plain", "split": "test", "metric": "acc,none", "higher_is_better": True, "stderr": 0.125}
    common |= {"source": "lm-validity", "n_items": 7, "selected": True, "checkpoint": "final"}
    rows = []
    for model in ("a", "org/b"):
        direct = common | {"model": model, "protocol": "direct"}
        rows += [direct | {"benchmark": "x", "value": 1 / 3, "num_fewshot": count} for count in (0, 5)]
        rows += [direct | {"benchmark": "x", "value": 0.2, "checkpoint": "s1", "iteration": 1, "tokens_b": 0.1 + 0.2}]
        strict = {"metric": "exact_match,strict", "selected": False, "num_fewshot": 0}
        rows += [direct | strict | {"benchmark": "x", "value": 0.2}]
        corpus = {"benchmark": "wiki", "metric": "bits_per_byte,none", "higher_is_better": False, "stderr": None}
        rows += [direct | corpus | {"value": 1.25}, direct | corpus | {"metric": "odd,none", "value": 9.5}]
        rows += [common | {"model": model, "protocol": "train_before_test", "benchmark": "x", "seed": 1, "value": 0.7}]
        rows += [direct | {"benchmark": "x", "prompt_variant": "other", "value": 0.4}]
    return pd.DataFrame(rows)


def test_written_and_read_back(tmp_path):
    write_table(our_scores(), SCORES, tmp_path / "scores.parquet")
    ours = read_scores(tmp_path / "scores.parquet")
    written = write_every_eval_ever(ours, tmp_path / "out", "me")
    for file in (json.loads(path.read_text()) for path in written):
        assert file.keys() >= REQUIRED and all(file[name].keys() >= keys for name, keys in OF_PARTS.items())
        assert all(each.keys() >= OF_RESULTS for each in file["evaluation_results"])
        assert all("lower_is_better" in each["metric_config"] for each in file["evaluation_results"])
        assert all(isinstance(text, str) for text in file["source_metadata"]["additional_details"].values())
    assert len(written) == len(set(written)) == 2 * 4
    assert {path.relative_to(tmp_path / "out").parts[:4] for path in written} == {
        ("data", "lm-validity", "unknown", "a"),
        ("data", "lm-validity", "org", "b"),
    }
    back = read_files([tmp_path / "out"], ImportOptions(), ImportLog(strict=True))
    write_table(back, SCORES, tmp_path / "back.parquet")
    order = ["model", "checkpoint", "benchmark", "metric", "protocol", "prompt_variant", "num_fewshot"]
    back = read_scores(tmp_path / "back.parquet").sort_values(order, ignore_index=True).drop(columns="source")
    ours = ours.sort_values(order, ignore_index=True).drop(columns="source")
    pd.testing.assert_frame_equal(back, ours, check_exact=True)


def test_a_written_file_says_what_the_format_asks(tmp_path):
    ours = our_scores().query("model == 'org/b'")
    paths = write_every_eval_ever(ours, tmp_path, "me", "third_party", "mine")
    assert paths == write_every_eval_ever(ours, tmp_path, "me", "third_party", "mine")
    found = max((json.loads(path.read_text()) for path in paths), key=lambda each: len(each["evaluation_results"]))
    assert found["model_info"]["developer"] == "org" and found["source_metadata"]["source_type"] == "evaluation_run"
    assert found["source_metadata"]["evaluator_relationship"] == "third_party"
    assert found["model_info"]["additional_details"] == {"deployment_type": "unknown", "model_availability": "unknown"}
    first = next(each for each in found["evaluation_results"] if each["evaluation_name"] == "x")
    assert first["score_details"]["uncertainty"] == {"standard_error": {"value": 0.125}, "num_samples": 7}
    configs = {each["metric_config"]["metric_id"]: each["metric_config"] for each in found["evaluation_results"]}
    assert {name: config.get("max_score") for name, config in configs.items()} == {
        "accuracy": 1, "exact_match": 1, "bits_per_byte": None, "odd": None,
    }  # fmt: skip
    assert configs["bits_per_byte"]["lower_is_better"] and "score_type" not in configs["odd"]
    assert "x/strict" in {each["evaluation_name"] for each in found["evaluation_results"]}


def test_directions_are_known_or_the_scores_stay_out():
    rows = pd.DataFrame({"metric": ["acc,none", "ppl,none", "odd,none", "odd,none", None, "acc,none"]})
    rows["higher_is_better"] = pd.array([None, None, None, False, True, True], dtype="boolean")
    rows["value"] = [0.5] * 5 + [None]
    kept, unknown = with_directions(rows)
    assert kept["higher_is_better"].tolist() == [True, False, False] and unknown == ["no metric", "odd"]
    with pytest.raises(InputError, match="odd"):
        with_directions(rows[2:3])


def test_the_commands(tmp_path):
    write_table(our_scores().assign(metric=None, higher_is_better=None)[:1], SCORES, tmp_path / "scores.parquet")
    (tmp_path / "b.csv").write_text("benchmark,metric\nx,acc\n")
    command = [str(tmp_path / "scores.parquet"), "--output", str(tmp_path / "out"), "--organization", "me"]
    sheet = ["--benchmarks", str(tmp_path / "b.csv")]
    assert isinstance(CliRunner().invoke(reports.exports, command).exception, InputError)
    assert CliRunner().invoke(reports.exports, [*command, *sheet, "--relationship", "none"]).exit_code == 2
    done = CliRunner().invoke(reports.exports, command + sheet)
    assert done.exit_code == 0 and "1 files" in done.output
    back = [str(tmp_path / "out"), "--output", str(tmp_path / "back"), "--strict"]
    assert CliRunner().invoke(reports.imports, back).exit_code == 0
    assert read_scores(tmp_path / "back" / "scores.parquet")["metric"].tolist() == ["acc,none"]


def test_answers_beside_an_evaluation_are_left_out_which_is_said(read, tmp_path):
    samples = {"evaluation_id": "e", "model_id": "org/a", "sample_id": "1", "evaluation": {"score": 1}}
    put(tmp_path / "in" / "0_samples.jsonl", json.dumps(samples))
    scores, log = read(document(result()))
    assert (
        len(scores) == 1
        and not log.items
        and [path for path, _ in log.skipped] == [str(tmp_path / "in" / "0_samples.jsonl")]
    )


def own(**columns) -> dict:
    details = {f"lm_validity_{name}": value for name, value in columns.items()}
    return {"source_metadata": document()["source_metadata"] | {"additional_details": details}}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (document(result(["a"])), "result 1, the name"),
        (document(result("  ")), "'  ' is no name"),
        (document(result(), model="  "), "'model'"),
        (document(result(metric={"metric_id": ["a"]})), "quiz, 'metric'"),
        (document(result(metric={"additional_details": {"lm_validity_benchmark": ["a"]}})), "'benchmark'"),
        (document(result(score_details={"score": 5e300})), "5e\\+300"),
        (document(result(score_details={"score": 0.5, "uncertainty": {"standard_error": 1e300}})), "1e\\+300"),
        (document(result(score_details={"score": 0.5, "uncertainty": {"num_samples": -5}})), "-5 is"),
        (document(result(generation_config={"additional_details": {"num_fewshot": "-5"}})), "-5.0 is"),
        (document(result(), **own(protocol="nonsense")), "'nonsense'"),
        (document(result(), **own(checkpoint=["a"])), "'checkpoint'"),
        (document(result(), **own(seed="x")), "'seed': 'x'"),
    ],
)
def test_bad_files_say_where(read, bad, words):
    with pytest.raises(InputError, match=words):
        read(bad, strict=True)


def test_errors_without_an_object_sizes_and_impossible_dates(read):
    """A number where the schema has an object; dates that no calendar has are none."""
    details = {"score": 0.5, "uncertainty": {"standard_error": 0.02, "num_samples": 0}}
    info = {"name": "a", "id": "org/a", "additional_details": {"params_billions": "8.5"}}
    for stamp in ("inf", 10**400, 1e300, -1, "nan"):
        rows, log = read(document(result(score_details=details), model_info=info, evaluation_timestamp=stamp))
        assert rows["stderr"].tolist() == [0.02] and rows["n_items"].isna().all()
        assert log.facts["org/a"]["parameters_b"] == 8.5
    old, new = (
        document(result(value=value), evaluation_timestamp=date) for value, date in ((0.1, "inf"), (0.2, "1e9"))
    )
    old["retrieved_timestamp"] = "1e8"
    assert read(old, new)[0]["value"].tolist() == [0.2]


def test_parts_of_a_dataset_are_no_metrics(read):
    """`test_easy` and `test_hard` are two benchmarks; `test_mcc` and `test_accuracy` two metrics of the dataset."""
    source = {"dataset_name": "coins", "source_type": "other"}
    names = {"test_easy": 0.5, "test_hard": 0.2, "test_mcc": 0.3, "test_accuracy": 0.4}
    results = [result(name, value, {}, source_data=source) for name, value in names.items()]
    scores, _ = read(document(*results))
    found = scores.set_index("value")[["benchmark", "metric"]]
    assert found["benchmark"].to_dict() == {0.5: "test_easy", 0.2: "test_hard", 0.3: "coins", 0.4: "coins"}
    assert found["metric"].dropna().to_dict() == {0.3: "mcc,none", 0.4: "accuracy,none"}


def test_evaluations_in_lines_may_hold_separators_of_lines(tmp_path):
    lines = [json.dumps(document(result(), model=f"ant{n}", remark="a\u2028b"), ensure_ascii=False) for n in (1, 2)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    scores = read_files([tmp_path / "all.jsonl"], ImportOptions(), ImportLog())
    assert set(scores["model"]) == {"ant1", "ant2"}
