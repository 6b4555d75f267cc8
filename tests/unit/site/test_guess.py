"""Guesses from names, from the table of lm-eval's tasks, and from the scores."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lm_validity.site.gather import (
    guess_benchmarks,
    guess_family,
    guess_lines,
    guess_models,
    guess_size,
    leave_sparse_out,
    shared_categories,
)
from lm_validity.tables.metrics import TABLE, find_task_facts, metric_direction

SCRIPT = Path(__file__).resolve().parents[3] / "workflow" / "scripts" / "tasks_table.py"


def scores(rows: list[tuple], **columns) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "metric", "value"])
    common = {"checkpoint": "final", "iteration": pd.NA, "higher_is_better": pd.NA, "protocol": "direct"}
    return frame.assign(**common | columns)


@pytest.mark.parametrize(
    ("name", "family", "size"),
    [
        ("Llama-2-7b-hf", "llama", 7),
        ("Meta-Llama-3-8B-Instruct", "llama", 8),
        ("pythia-1.4b-deduped", "pythia", 1.4),
        ("pythia-v1.1-160m-0.5MtokBS", "pythia", 0.16),
        ("bloom-7b1", "bloom", 7.1),
        ("open_llama_3b_v2", "open_llama", 3),
        ("RedPajama-INCITE-7B-Base", "redpajama-incite", 7),
        ("gpt-neox-20B", "gpt-neox", 20),
        ("stablelm-base-alpha-3b", "stablelm", 3),
        ("stablelm-3b-4e1t", "stablelm", 3),
        ("Qwen2.5-14B-Instruct", "qwen", 14),
        ("phi-1_5", "phi", None),
        ("stablelm-2-1_6b", "stablelm", None),  # 1.6, which `6b` is not
        ("Mixtral-8x7B-v0.1", "mixtral", None),
        ("bear-1.5b2", "bear", None),
        ("bear-1000m-1b", "bear", 1.0),
        ("gpt2-xl", "gpt", None),
        ("1234", None, None),
    ],
)
def test_family_and_size_of_a_name(name, family, size):
    assert guess_family(name) == family
    assert guess_size(name) == size


@pytest.mark.parametrize(
    ("size", "right"), [(6.5, 6.5), ("CON", 7), (-1.0, 7), (0, 7), (1e300, 7)], ids=["size", "text", "-1", "0", "large"]
)
def test_what_files_say_of_a_model_counts_before_its_name_where_it_can_be(size, right):
    rows = scores([("org/toy-7b", "arc_easy", "acc,none", 0.5), ("b", "arc_easy", "acc,none", 0.5)])
    facts = {"family": "bear", "learning_rate": 3e-4, "parameters_b": size}
    sheet = guess_models(rows, {"org/toy-7b": facts}).set_index("model")
    assert sheet["family"].to_dict() == {"org/toy-7b": "bear", "b": "b"}
    toy = sheet.loc["org/toy-7b"]
    assert (toy["parameters_b"], toy["label"], toy["learning_rate"]) == (right, "toy-7b", 3e-4)
    assert toy["guessed"] == ("parameters_b" if right == 7 else None)


def test_tokens_follow_from_steps_where_their_size_is_published():
    rows = [("pythia-70m", "sciq", "acc,none", 0.5), ("pythia-70m-1MtokBS", "sciq", "acc,none", 0.5)]
    rows.append(("other-70m", "sciq", "acc,none", 0.5))
    sheet = guess_models(scores(rows, iteration=pd.array([1000, 2000, 1000], "Int64")), {}).set_index("model")
    assert sheet.loc["pythia-70m", ["tokens_per_step", "tokens_b"]].tolist() == [2097152, pytest.approx(2.097152)]
    assert sheet.loc["pythia-70m-1MtokBS", ["tokens_per_step", "tokens_b"]].tolist() == [2**20, pytest.approx(2.097152)]
    assert sheet.loc["other-70m", "tokens_per_step"] is None


@pytest.mark.parametrize(
    ("task", "metric", "kind", "choices", "category"),
    [
        ("hellaswag", "acc_norm,none", "multiple_choice", "4", ""),
        ("arc_easy", "acc_norm,none", "multiple_choice", "4", "arc"),  # a few of its questions have 3 or 5
        ("piqa", "acc_norm,none", "multiple_choice", "2", ""),
        ("mmlu_abstract_algebra", "acc,none", "multiple_choice", "4", "mmlu"),
        ("hendrycksTest-virology", "acc,none", "multiple_choice", "4", "mmlu"),
        ("lambada_openai", "acc,none", "", "", "lambada"),
        ("wikitext", "word_perplexity,none", "loglikelihood_rolling", "", ""),
    ],
)
def test_the_table_of_tasks(task, metric, kind, choices, category):
    facts = find_task_facts(task)
    assert (facts.metric, facts.output_type, facts.choices, facts.category) == (metric, kind, choices, category)
    assert facts.higher_is_better == str(int(task != "wikitext"))


def test_a_task_that_nobody_knows():
    assert find_task_facts("my_own_quiz_of_things") is None
    directions = {"ppl,none": False, "acc": True, "nobodys_metric": None}
    assert {metric: metric_direction(metric) for metric in directions} == directions


@pytest.mark.slow  # lm-eval reads 14,000 YAML files
def test_the_table_of_tasks_is_what_its_script_writes_from_the_installed_lm_eval(tmp_path):
    pytest.importorskip("lm_eval")
    made = tmp_path / "tasks.tsv"
    subprocess.run([sys.executable, SCRIPT, "--output", made], check=True, capture_output=True, text=True)
    assert made.read_text(encoding="utf-8").splitlines() == TABLE.read_text(encoding="utf-8").splitlines()


def test_a_group_has_the_facts_of_its_tasks_and_the_direction_that_scores_say():
    rows = scores([("a", "mmlu", "acc,none", 0.5)])
    assert guess_benchmarks(rows).iloc[0]["chance"] is None
    row = guess_benchmarks(rows, {"mmlu": "mmlu_anatomy"}).iloc[0]
    assert (row["chance"], row["output_type"], row["higher_is_better"]) == (0.25, "multiple_choice", 1)
    assert "higher_is_better" in row["guessed"]
    said = guess_benchmarks(rows.assign(higher_is_better=False), {"mmlu": "mmlu_anatomy"}).iloc[0]
    assert said["higher_is_better"] == 0 and "higher_is_better" not in said["guessed"]


@pytest.mark.parametrize(
    ("names", "families"),
    [
        ([f"fam{number}-{size}b" for number in range(40) for size in (1, 7)], {f"fam{number}" for number in range(40)}),
        ([f"pythia-{size}" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")], {"pythia"}),
        ([f"llama-{number}-{size}b" for number in (1, 2, 3) for size in (7, 13)], {"llama"}),
        ([f"model-{number}" for number in range(20)], {"model"}),
        ([f"gem-{width}x{depth}" for width in range(256, 3072, 256) for depth in (4, 8)], {"gem"}),
        ([f"fam{number}-{size}b" for number in range(6) for size in (1, 7)] + ["other-1b"], {"fam", "other"}),
    ],
    ids=["numbers", "sizes", "generations", "models", "widths", "another word"],
)
def test_families_that_differ_by_their_number_alone(names, families):
    rows = scores([(name, "arc_easy", "acc,none", 0.5) for name in names])
    assert set(guess_models(rows, {})["family"]) == families


def test_the_metric_is_one_that_the_scores_have():
    rows = [
        ("a", "hellaswag", "acc,none", 0.5),  # the table's acc_norm is not there
        ("a", "lambada_openai", "ppl,none", 9.0),
        ("a", "lambada_openai", "acc,none", 0.5),
        ("a", "mine", "wer,none", 0.5),
        ("a", "mine", "cer,none", 0.5),
    ]
    sheet = guess_benchmarks(scores(rows)).set_index("benchmark")
    assert sheet["metric"].to_dict() == {"hellaswag": "acc,none", "lambada_openai": "acc,none", "mine": None}
    assert sheet.loc["hellaswag", "chance"] == 0.25 and sheet.loc["mine", "higher_is_better"] is None


def test_of_metrics_with_the_same_scores_the_first_counts_and_of_the_first_five_the_first():
    values = {"headline,none": (0.4, 0.5, 0.6), "choice,none": (0.4, 0.5, 0.6), "top5,none": (0.7, 0.8, 0.9)}
    rows = [
        (f"ant-{place}b", benchmark, metric, values[metric][place])
        for benchmark, metrics in {"same": [*values][:2], "unlike": [*values][1:]}.items()
        for metric in metrics
        for place in range(3)
    ]
    rows += [(f"ant-{place}b", "images", metric, 0.5) for metric in ("top5,none", "top1,none") for place in range(2)]
    sheet = guess_benchmarks(scores(rows)).set_index("benchmark")
    assert sheet["metric"].to_dict() == {"images": "top1,none", "same": "headline,none", "unlike": None}


def crossed(models: int, benchmarks: dict[str, int]) -> pd.DataFrame:
    """Scores of the first so many models on each benchmark."""
    return scores([(f"m{i}", name, "acc,none", 0.5) for name, number in benchmarks.items() for i in range(number)])


def test_sparse_benchmarks_and_models_are_left_out_of_the_comparison():
    rows = crossed(4, {"arc_easy": 4, "sciq": 4, "piqa": 3, "boolq": 1})
    rows = pd.concat([rows, scores([("late", "arc_easy", "acc,none", 0.5)])], ignore_index=True)
    models, benchmarks = guess_models(rows, {}), guess_benchmarks(rows)
    notes = leave_sparse_out(models, benchmarks, rows)
    assert benchmarks.set_index("benchmark")["studies"].dropna().to_dict() == {"boolq": "none"}
    assert models.set_index("model")["studies"].dropna().to_dict() == {"late": "none"}
    assert len(notes) == 2


def test_categories_that_tell_nothing_apart_are_left_out():
    one = shared_categories(guess_benchmarks(crossed(1, {"arc_easy": 1, "arc_challenge": 1, "sciq": 1})))
    assert one["category"].isna().all() and not one["guessed"].str.contains("category").any()
    names = {"arc_easy": 1, "arc_challenge": 1, "mmlu_virology": 1, "mmlu_marketing": 1, "sciq": 1}
    two = shared_categories(guess_benchmarks(crossed(1, names))).set_index("benchmark")["category"]
    assert two.dropna().to_dict() == {
        "arc_easy": "arc", "arc_challenge": "arc", "mmlu_virology": "mmlu", "mmlu_marketing": "mmlu",
    }  # fmt: skip


def test_guesses_are_counted_and_unknown_directions_named():
    rows = crossed(2, {"arc_easy": 2, "boolq": 2})
    lines = guess_lines(guess_models(rows, {}), guess_benchmarks(rows), rows)
    assert len(lines) == 2 and all("2 " in line for line in lines)
    own = guess_benchmarks(scores([("m0", "my_task", "points", 0.5), ("m0", "boolq", "acc,none", 0.5)]))
    (line,) = [line for line in guess_lines(guess_models(rows, {}), own, rows) if line.startswith("Direction unknown")]
    assert "my_task" in line and "boolq" not in line
