"""What claims mean: each decision with right values, an unsure case, and what too much cleverness would break."""

import re

import numpy as np
import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.tables.aggregates import find_aggregates, is_mean_of_some, is_weighted_mean_of, is_win_rate_of
from lm_validity.tables.cell_text import (
    is_no_score,
    is_unbounded,
    lower_is_better,
    names_average,
    names_cost,
    names_count,
    names_rank,
    plain,
    read_cell,
)
from lm_validity.tables.columns import not_a_score, variants
from lm_validity.tables.decisions import read_corrections
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.reading import (
    choose_metric,
    direction_of,
    error_kind,
    linear_in,
    one_model,
    pooled_error,
)
from lm_validity.tables.task_facts import TaskFacts
from lm_validity.tables.units import unit_of


@pytest.mark.parametrize(
    ("text", "value", "error"),
    [
        ("57.1", 57.1, None), ("57.1%", 57.1, None), ("57.1 ± .8", 57.1, 0.8), ("57.1 (0.8)", 57.1, 0.8),
        ("**64.1**", 64.1, None), ("42.0*", 42.0, None), ("1,234.5", 1234.5, None), ("1e-3", 0.001, None),
        ("57.1 [55.1, 59.1]", 57.1, 2.0), ("57.1 (+2.3)", 57.1, None), ("81.0 (5-shot)", 81.0, None),
        ("45/60", 0.75, None), ("\\textbf{64.1}", 64.1, None), ("<b>64.1</b>", 64.1, None), ("−3.5", -3.5, None),
        ("71.3<sup>1</sup>", 71.3, None), ("71.3^2", 71.3, None), ("48<sup>2</sup>", 48, None), ("7.1^{3}", 7.1, None),
    ],
)  # fmt: skip
def test_cells_as_people_write_them(text, value, error):
    cell = read_cell(text)
    assert cell.value == pytest.approx(value) and cell.error == (None if error is None else pytest.approx(error))


@pytest.mark.parametrize(
    "text",
    [
        "OOM",
        "–",
        "<1",
        "57.1/60.2",
        "1.234,5",
        "1_000",
        "v2",
        "4 of 3",
        "7b",
        "64<br>5",
        "71.3<sub>2</sub>",
        "71.3<a href='x'>2</a>",
    ],
)
def test_cells_whose_number_is_not_known(text):
    assert read_cell(text) is None


def test_units():
    assert unit_of(np.array([0.3, 0.99])).name == "share" and unit_of(np.array([30.0, 99])).name == "percent"
    mixed = unit_of(np.array([31.2, 35.0, 42.0, 0.66]))
    assert mixed.name == "percent" and mixed.odd.tolist() == [False, False, False, True]
    assert unit_of(np.array([0.3, 0.4, 0.5, 66.0])).odd.tolist() == [False, False, False, True]
    assert unit_of(np.array([1090.0, 1192])).name is None and unit_of(np.array([-0.2, 0.1])).name is None
    assert unit_of(np.array([1090.0, 1192]), unbounded=True).name == "points"
    hard = unit_of(np.array([0.4, 0.8, 3.3, 6.7]))  # a hard benchmark stays in percent
    assert hard.name == "percent" and not hard.odd.any()
    assert not unit_of(np.array([0.0, 31.2, 35.0])).odd.any()  # 0 is 0 in either unit


def test_kinds_of_errors():
    p, n = np.array([0.3, 0.5, 0.64, 0.8]), np.full(4, 500.0)
    se = np.sqrt(p * (1 - p) / n)
    assert error_kind(p, se, n) == "stderr" and error_kind(p, 1.96 * se, n) == "ci95"
    assert error_kind(p, np.sqrt(p * (1 - p)), n * np.nan) == "sd" and error_kind(p, p * (1 - p), n) == "variance"
    assert error_kind(p, se, n * np.nan) is None and error_kind(p, 3 * se, n) is None


def test_the_error_of_a_group_from_its_tasks():
    """Two tasks of 100 and 300 items: the root of the sum of p(1-p)n over 400 (n - 1 in each error)."""
    p, n = np.array([0.4, 0.6]), np.array([100.0, 300.0])
    errors = np.sqrt(p * (1 - p) / (n - 1))
    assert pooled_error(p, errors) == pytest.approx(np.sqrt(np.sum((n * errors) ** 2)) / 400)
    assert pooled_error(np.array([1.0, 0.6]), errors) is None


def test_averages_ranks_and_costs_by_words_and_arithmetic():
    rng = np.random.default_rng(0)
    values = pd.DataFrame(rng.uniform(0.2, 0.8, (6, 4)).round(4), columns=["reading", "sums", "maps", "mean_reversal"])
    table = values.assign(suite=values.mean(axis=1).round(4), place=values["sums"].rank(ascending=False), seconds=2.0)
    table["Mean score"] = 0.5
    assert set(find_aggregates(table)) == {"suite", "place", "seconds", "Mean score"}
    assert find_aggregates(table)["suite"] == ("the mean of 4 others", "arithmetic")
    assert not find_aggregates(values)  # a benchmark with a suspicious word stays
    assert names_average("overall") and names_average("Average ⬆️") and names_average("timedial") is False
    assert names_average("mmlu_avg") is None and not names_rank("rank_fusion_qa") and names_rank("Rank")
    assert names_cost("Total cost ($)") and not names_cost("cost_of_living_qa")
    assert names_cost("token_count") and names_cost("generation") and names_cost("Count")
    assert not_a_score("Zero-shot", {"zero_shot": "Zero-shot", "embedding_dimensions": "Embedding Dimensions"})
    assert not any(not_a_score("Zero-shot", {"zero_shot": "Zero-shot", name: name}) for name in ("five_shot", "cot"))
    assert not_a_score("zero_shot", {}) is None
    assert names_cost("ttft_ms") and names_cost("throughput_tok_s")
    assert not any(map(names_cost, ("XCOPA_ms", "HumanEval_s", "LongEval-S")))
    assert names_cost("total_count") and names_cost("n_count")
    assert not any(map(names_cost, ("LCB_generation", "Code Generation", "Letter Count", "word_count")))
    assert is_unbounded("MTBench") and is_unbounded("MT-Bench 2") and not is_unbounded("MTBE")


def test_a_mean_of_some_other_columns_is_no_benchmark():
    """Its parts stand anywhere; a mean of such means goes too. What rounding alone could give is none."""
    rng = np.random.default_rng(1)
    names = ["ferns", "stones", "rivers", "coins", "knots", "maps"]
    values = pd.DataFrame(rng.uniform(20, 80, (9, 6)) + rng.normal(0, 8, 9)[:, None], columns=names).round(1)
    some, two = values[["ferns", "rivers", "maps"]].mean(axis=1), values[["stones", "knots"]].mean(axis=1)
    table = values.assign(nature=some, craft=two, both=(some + two) / 2).round(2)[["both", *names, "nature", "craft"]]
    found = {name: kind for name, (kind, _) in find_aggregates(table).items()}
    assert found["nature"] == "the mean of 3 others" and found["craft"] == "the mean of 2 others"
    assert set(found) == {"nature", "craft", "both"}
    assert sorted(is_mean_of_some(some.round(2).to_numpy(), values.to_numpy())) == [0, 2, 5]
    assert not find_aggregates(values) and not find_aggregates(values.assign(nature=some + rng.normal(0, 0.5, 9)))
    coarse = pd.DataFrame(rng.integers(1, 4, (4, 12)).astype(float)).rename(columns=str)
    assert not is_mean_of_some(coarse[["0", "5"]].mean(axis=1).to_numpy(), coarse.to_numpy())
    draw = np.random.default_rng(0).normal  # twelve wordings of one benchmark: many sets have a mean near each
    alike = (50 + draw(0, 15, (8, 1)) + draw(0, 0.3, (8, 12))).round(1)
    assert not any(is_mean_of_some(alike[:, place], np.delete(alike, place, axis=1)) for place in range(12))


def test_tokens_are_costs_in_names_of_speeds_and_prices_only():
    costs = ("token", "chars", "second", "tokens per second", "chars_per_second", "price per token", "Tokens/s")
    scores = ("nll_per_token", "bits_per_token", "loss_per_token", "f1_token", "last_token", "mt_bench_second",
              "lambada chars")  # fmt: skip
    assert all(map(names_cost, costs)) and not any(map(names_cost, scores))
    of_units = ("Mean (s)", "Latency 95th Percentile (ms)", "Memory (GB)", "Judge ($)", "Wall (h)")
    assert all(map(names_cost, of_units)) and not any(map(names_cost, ("COCO (S)", "XCOPA (ms)", "MMLU (GB)")))


def test_words_of_other_languages_count_where_a_name_says_nothing_else():
    assert (
        names_average("平均分") and names_rank("排名") and names_cost("花费/千次（元）") and plain("大模型") == "model"
    )
    assert names_average("Moyenne") and plain("模型名称") == "model"
    assert not any(map(names_cost, ("成本分析", "价格预测"))) and plain("大模型安全") == "" == plain("数学准确率")
    assert names_average("平均数计算") is False


def test_whole_numbers_from_1_are_places_only_in_the_order_of_others(tmp_path):
    solved = [2, 1, 3, 5, 4, 7, 6]
    table = pd.DataFrame({"coins": [0.31, 0.42, 0.55, 0.61, 0.48, 0.72, 0.66], "solved": solved})
    assert not find_aggregates(table)
    assert find_aggregates(table.assign(order=[7, 6, 4, 3, 5, 1, 2])) == {"order": ("a rank", "arithmetic")}
    path, reading = tmp_path / "s.csv", tmp_path / "r.csv"
    table.assign(model=[f"m-{name}" for name in "abcdefg"]).to_csv(path, index=False)
    scores, log = import_files([path], tmp_path / "out")
    assert set(scores["benchmark"]) == {"coins", "solved"}
    assert ("average", "solved", "benchmark", "unsure") in {
        (decision.what, decision.where, decision.decided, decision.kind) for decision in log.reading.decisions
    }
    reading.write_text("what,where,decided\naverage,solved,left out\n")
    options = ImportOptions(corrections=read_corrections(reading))
    assert set(import_files([path], tmp_path / "out", options).scores["benchmark"]) == {"coins"}


def test_columns_of_nothing_but_places_are_read_by_the_rows_of_the_hint(tmp_path):
    path, reading = tmp_path / "s.csv", tmp_path / "r.csv"
    places = {"coins": [1, 2, 3, 4, 5, 6], "tides": [2, 1, 3, 4, 6, 5], "moons": [1, 3, 2, 5, 4, 6]}
    pd.DataFrame({"model": [f"m-{name}" for name in "abcdef"], **places}).to_csv(path, index=False)
    with pytest.raises(InputError) as refused:
        import_files([path], tmp_path / "out")
    rows = re.findall(r"average,\w+,benchmark", refused.value.hint)
    reading.write_text("\n".join(["what,where,decided", *rows]))
    options = ImportOptions(corrections=read_corrections(reading))
    assert set(import_files([path], tmp_path / "out", options).scores["benchmark"]) == set(places)


def test_directions():
    assert direction_of("x", "ter,none", said=True) == (False, "known table", True)
    assert direction_of("x", None, said=None)[0] is None
    assert direction_of("stories_ppl", None, said=None, most=0.7)[0] is None  # no perplexity is below 1
    assert direction_of("stories_ppl", None, said=None, most=12.0)[0] is False
    for name in ("val_loss", "Hallucination rate", "ECE (10-bin)", "Toxic fraction", "WER", "error_rate"):
        assert lower_is_better(name), name
    for name in ("error_detection", "loss_aversion_qa", "toxigen", "hallucination_detection"):
        assert not lower_is_better(name), name


def test_metrics():
    none = TaskFacts()
    assert choose_metric(none, ["avg_length,none", "edit_distance,none", "score,none"]) == "score,none"
    assert choose_metric(none, ["0_invalid_rate,none", "relaxed_match,none"]) == "relaxed_match,none"
    assert choose_metric(none, ["acc,none", "acc_norm,none"]) == "acc_norm,none"
    assert choose_metric(none, ["harmony,none", "melody,none"]) is None
    assert is_no_score("avg_length") and not is_no_score("win_rate") and not is_no_score("timedial_acc")


def test_names_of_one_model():
    same, other = {"a": 0.1, "b": 0.2, "c": 0.3}, {"a": 0.1, "b": 0.2, "c": 0.4}
    assert one_model(["ACME/Ant-1B", "acme/ant-1b"], {"ACME/Ant-1B": {"a": 0.1}, "acme/ant-1b": {"b": 0.2}}) == {
        "ACME/Ant-1B": ("acme/ant-1b", "name")
    }
    assert one_model(["ant-1b", "acme/ant-1b"], {"ant-1b": same, "acme/ant-1b": same})["ant-1b"][0] == "acme/ant-1b"
    assert not one_model(["x/ant-1b", "y/ant-1b"], {"x/ant-1b": same, "y/ant-1b": other})
    assert not one_model(["ant-1b", "acme/ant-1b"], {"ant-1b": {"a": 0.1}, "acme/ant-1b": {"a": 0.1}})
    assert not one_model(["ant-1b-v1", "ant-1b-v2"], {"ant-1b-v1": same, "ant-1b-v2": same})


def test_a_reading_is_written_and_taken_back(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("model,x,y,suite\na,30,1100,565\nb,40,1200,620\nc,50,1300,675\nd,60,1400,730\n")
    scores, log = import_files([table], tmp_path / "one")
    assert set(scores["benchmark"]) == {"x"} and {"unit"} == {each.what for each in log.reading.decisions if each.text}
    (tmp_path / "r.tsv").write_text(
        "what\twhere\tdecided\nunit\ty\tpoints\nbenchmark\tsuite\tleft out\nmodel\ta\torg/a\n"
    )
    options = ImportOptions(reading=tmp_path / "r.tsv")
    scores, _ = import_files([table], tmp_path / "two", options)
    assert scores.groupby("benchmark")["value"].max().to_dict() == {"x": 0.6, "y": 1400}
    assert "org/a" in set(scores["model"])
    rows = pd.read_csv(tmp_path / "two" / "reading.tsv", sep="\t")
    assert ("unit", "y", "points") in set(rows[["what", "where", "decided"]].itertuples(index=False, name=None))
    for name in ("one", "two"):  # uncorrected, it changes nothing
        import_files([table], tmp_path / "o", ImportOptions(reading=tmp_path / name / "reading.tsv"))
        pd.testing.assert_frame_equal(*(pd.read_parquet(tmp_path / each / "scores.parquet") for each in ("o", name)))
    (tmp_path / "r.tsv").write_text("what\twhere\tdecided\nunits\ty\tpoints\n")
    with pytest.raises(InputError, match="row 2, column 'what': 'units' is no decision") as caught:
        read_corrections(tmp_path / "r.tsv")
    assert "unit" in caught.value.hint


def test_one_odd_cell_is_left_out_and_the_column_stays():
    """640 among percentages, 31.2 below 0 among them, 42.1 among shares; a measure beyond 100 stays unsure."""
    unit = unit_of(np.array([51.0, 62.0, 640.0, 55.0]))
    assert unit.name == "percent"
    assert list(unit.beyond) == [False, False, True, False]
    assert list(unit_of(np.array([51.0, 62.0, -31.2, 55.0])).beyond) == [False, False, True, False]
    assert unit_of(np.array([85.0, 92.0, 105.0, 110.0])).name is None
    assert unit_of(np.array([85.0, 92.0, 99.0, 104.0])).name is None  # no slip: near the others
    assert unit_of(np.array([51.0, 640.0, 55.0])).name is None  # too few to tell


def test_columns_that_are_variants_of_one_benchmark():
    """Filters behind commas with few-shot and metric, metrics at the end; alone, or of other ends, they are not."""
    both = variants(["quiz_5_exact_match,strict-match", "quiz_5_exact_match,flexible-extract", "maps"])
    assert both["quiz_5_exact_match,strict-match"] == {
        "benchmark": "quiz", "metric": "exact_match,strict-match", "num_fewshot": 5
    }  # fmt: skip
    assert variants(["sums,strict", "sums,loose"])["sums,loose"] == {"benchmark": "sums", "metric": "score,loose"}
    assert {said["metric"] for said in variants(["chem acc", "chem acc_norm"]).values()} == {
        "acc,none", "acc_norm,none"
    }  # fmt: skip
    assert variants(["chem acc", "maps acc", "rivers, north", "rivers_f1"]) == {}
    assert variants(["truthfulqa_mc1", "truthfulqa_mc2"]) == {}  # tasks of lm-eval


def test_scores_that_follow_from_others():
    """Chance taken off is a factor and a constant; scores that are merely alike are not."""
    raw = np.array([0.3012, 0.3641, 0.4203, 0.5087, 0.5662, 0.6410])
    assert linear_in(raw, raw) == "the same scores"
    assert linear_in(raw, 1 - raw) == "scores that add up to 1"
    assert "1.33" in (linear_in(raw, np.round((raw - 0.25) / 0.75, 4)) or "")
    assert linear_in(raw, np.round(raw + np.array([0.01, -0.01, 0, 0.01, 0, -0.01]), 4)) is None


def test_a_mean_by_items_of_columns_of_one_name_is_found():
    """Weights .5, .3, .2 over twelve models; not for as few models as columns allow, nor for another column."""
    rng = np.random.default_rng(4)
    parts = np.round(rng.uniform(0.2, 0.9, (12, 3)), 4)
    assert is_weighted_mean_of(np.round(parts @ [0.5, 0.3, 0.2], 4), parts)
    assert not is_weighted_mean_of(np.round(parts @ [0.5, 0.3, 0.2], 4)[:9], parts[:9])
    assert not is_weighted_mean_of(np.round(rng.uniform(0.2, 0.9, 12), 4), parts)


def test_a_win_rate_follows_from_places():
    """As places of five models on three columns, 1 to 5: their mean, times a factor, is no score; a score is."""
    others = np.array([[0.1, 0.2, 0.3], [0.2, 0.1, 0.4], [0.3, 0.5, 0.35], [0.4, 0.4, 0.6], [0.5, 0.6, 0.5]])
    mean_places = np.array([4, 5, 9, 12, 15]) / 3  # places (1, 2, 1), (2, 1, 3)... within each column, 1 the lowest
    mean_places[1], mean_places[2] = (2 + 1 + 3) / 3, (3 + 4 + 2) / 3
    mean_places[3], mean_places[4] = (4 + 3 + 5) / 3, (5 + 5 + 4) / 3
    mean_places[0] = (1 + 2 + 1) / 3
    win_rate = np.round((mean_places - 1) / 4, 3)
    assert is_win_rate_of("Winrate", win_rate, others) and is_win_rate_of(
        "mean win", np.round(7 * mean_places + 3, 2), others
    )
    assert not is_win_rate_of("ledger", win_rate, others)  # the name says nothing of wins
    assert not is_win_rate_of("win_rate", np.array([0.31, 0.42, 0.35, 0.66, 0.7]), others)  # against one opponent
    assert not is_win_rate_of("Winrate", win_rate[:4], others[:4])


@pytest.mark.parametrize(
    ("name", "counts"),
    [("#Languages", True), ("num_errors", True), ("n_wins", True), ("languages", False), ("c#", False)],
)
def test_names_of_counts(name, counts):
    assert names_count(name) is counts


def _read_back(tmp_path, text, corrections):
    """Scores by (model, benchmark, run) of a CSV file with a reading of these rows (what, where, decided)."""
    (tmp_path / "s.csv").write_text(text)
    (tmp_path / "r.tsv").write_text("\n".join("\t".join(row) for row in [("what", "where", "decided"), *corrections]))
    options = ImportOptions(reading=tmp_path / "r.tsv" if corrections else None)
    scores, _ = import_files([tmp_path / "s.csv"], tmp_path / "out", options)
    keys = scores[["model", "benchmark", "run", "seed"]].astype(object).where(lambda table: table.notna(), None)
    return dict(zip(keys.itertuples(index=False, name=None), scores["value"].round(9), strict=True))


def test_a_guess_is_taken_back_by_a_reading(tmp_path):
    """Seeds that are no runs, a comma that ends no thousand, a cell that means a number, an odd value in its unit."""
    seeds = "model,seed,ledger\na,1,0.3\na,2,0.4\nb,1,0.5\nb,2,0.6\n"
    assert set(_read_back(tmp_path, seeds, [])) >= {("a", "ledger", 1, None)}
    assert set(_read_back(tmp_path, seeds, [("column", "seed", "seed")])) >= {("a", "ledger", None, 1)}
    commas = 'model,ledger,elo\na,"0,31","1,21"\nb,"0,42","1,35"\nc,"0,5","1,4"\n'
    assert _read_back(tmp_path, commas, [])["a", "elo", None, None] == 1.21
    cells = "model,ledger\na,0.31\nb,about .4\nc,0.5\n"
    assert ("b", "ledger", None, None) not in _read_back(tmp_path, cells, [])
    assert _read_back(tmp_path, cells, [("cell", "s.csv, ledger, row 3", "0.4")])["b", "ledger", None, None] == 0.4
    odd = "model,ledger\na,31\nb,0.42\nc,50\nd,61\ne,44\n"
    assert ("b", "ledger", None, None) not in _read_back(tmp_path, odd, [])
    assert _read_back(tmp_path, odd, [("unit", "b on ledger", "share")])["b", "ledger", None, None] == 0.42
    models = "model,ledger,quiz\na,31,41\nb,0.42,0.52\nc,50,60\nd,61,71\n"
    assert _read_back(tmp_path, models, [])["b", "quiz", None, None] == 0.52
    assert _read_back(tmp_path, models, [("unit", "b", "percent")])["b", "quiz", None, None] == 0.0052
    assert ("b", "quiz", None, None) not in _read_back(tmp_path, models, [("unit", "b", "left out")])


def _names_read(tmp_path, text, corrections, name="s.csv"):
    """(model, checkpoint, benchmark) of each score of a file in a folder, with a reading; `is_said`: whether the import
    without it says its guess under the same words."""
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / name).write_text(text)
    (tmp_path / "r.tsv").write_text("\n".join("\t".join(row) for row in [("what", "where", "decided"), *corrections]))
    options = ImportOptions(reading=tmp_path / "r.tsv" if corrections else None)
    scores, log = import_files([tmp_path / "in"], tmp_path / "out", options)
    rows = scores[["model", "checkpoint", "benchmark"]].itertuples(index=False, name=None)
    return set(rows), {(each.what, each.where, each.decided) for each in log.reading.decisions}, scores


def test_what_names_and_columns_are_is_taken_back_by_a_reading(tmp_path):
    """Steps in names, a first column without a name, columns of 0 and 1, models without a name: rows that are said."""
    steps = "model,arc\noak-step500,.3\noak-step1000,.4\nelm-step500,.31\nelm-step1000,.42\n"
    names, said, _ = _names_read(tmp_path, steps, [])
    assert ("oak", "step500", "arc") in names and ("column", "model", "model and step") in said
    names, said, _ = _names_read(tmp_path, steps, [("column", "model", "model and step")])  # uncorrected
    assert ("oak", "step500", "arc") in names and ("column", "model", "model and step") in said
    assert ("oak-step500", "final", "arc") in _names_read(tmp_path, steps, [("column", "model", "model")])[0]
    bare = "model,arc\noak-500,.3\noak-1000,.4\n"
    assert ("oak-500", "final", "arc") in _names_read(tmp_path, bare, [])[0]
    assert ("oak", "step500", "arc") in _names_read(tmp_path, bare, [("column", "model", "model and step")])[0]

    unnamed = ",arc,piqa\noak,.3,.5\nelm,.4,.6\n"
    names, said, _ = _names_read(tmp_path, unnamed, [])
    assert ("oak", "final", "arc") in names and ("column", "first column", "model") in said
    names, _, _ = _names_read(tmp_path, unnamed, [("column", "first column", "benchmark")])
    assert names == {(model, "final", task) for model in ("arc", "piqa") for task in ("oak", "elm")}

    few = "model,q1,q2,q3\noak,0,1,1\nelm,1,1,0\n"
    names, said, _ = _names_read(tmp_path, few, [])
    assert ("oak", "final", "q1") in names and ("column", "s.csv", "benchmarks") in said
    names, _, scores = _names_read(tmp_path, few, [("column", "s.csv", "items")])
    assert {(model, point) for model, point, _ in names} == {("oak", "final"), ("elm", "final")} and len(names) == 2
    assert scores["value"].round(9).tolist() == [round(2 / 3, 9)] * 2 and set(scores["n_items"]) == {3}
    header = ",".join(f"q{number}" for number in range(25))
    many = f"model,{header}\noak,{'1,' * 24}0\nelm,{'0,' * 24}1\n"
    assert ("column", "s.csv", "items") in _names_read(tmp_path, many, [])[1]
    assert len(_names_read(tmp_path, many, [("column", "s.csv", "benchmarks")])[0]) == 50


def test_a_further_column_of_answers_is_said_and_counts_where_the_reader_says(tmp_path):
    """`correct` counts before `f1`: means of 1 and 0, and of .8 and .4."""
    text = "model,task,item_id,correct,f1\noak,quiz,1,1,0.8\noak,quiz,2,0,0.4\nelm,quiz,1,1,0.9\nelm,quiz,2,1,0.7\n"
    _, said, scores = _names_read(tmp_path, text, [])
    assert ("column", "f1", "left out") in said and scores.set_index("model").at["oak", "value"] == 0.5
    _, said, scores = _names_read(tmp_path, text, [("column", "f1", "score")])
    assert scores.set_index("model")["value"].round(9).to_dict() == {"oak": 0.6, "elm": 0.8}
    assert ("column", "correct", "left out") in said
    twice = "model,task,item_id,correct\noak,quiz,1,1\noak,quiz,1,0\noak,quiz,2,1\nelm,quiz,1,1\nelm,quiz,2,1\n"
    _, said, scores = _names_read(tmp_path, twice, [])
    assert ("cell", "item_id", "mean") in said and scores.set_index("model").at["oak", "value"] == 0.75
    _, _, scores = _names_read(tmp_path, twice, [("cell", "item_id", "first")])
    assert scores.set_index("model").at["oak", "value"] == 1.0


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Models,arc\noak,.3\nelm,.4\n", {"oak", "elm"}),
        ("Models,Benchmarks,Scores\noak,arc,.3\nelm,arc,.4\n", {"oak", "elm"}),
        ("System,ARC,PIQA\noak,30.1,50.2\nelm,40.1,60.2\n", {"oak", "elm"}),
        ("City,Population,Area\nA,1000,2.5\nB,2000,3.5\n", None),
        (",Population,Area\nA,10,2.5\nB,20,3.5\n", None),  # no known task
        ("method,learning_rate\nadam,0.1\nsgd,0.2\n", None),
    ],
)
def test_a_table_in_a_folder_is_known_by_plain_words(tmp_path, text, read):
    if read is None:
        with pytest.raises(InputError, match="of no known format"):
            _names_read(tmp_path, text, [])
    else:
        assert {model for model, _, _ in _names_read(tmp_path, text, [])[0]} == read


def test_a_parquet_in_a_folder_is_read_unless_it_is_ours(tmp_path):
    (tmp_path / "in").mkdir()
    pd.DataFrame({"Model": ["oak", "elm"], "arc": [0.3, 0.4]}).to_parquet(tmp_path / "in" / "board.parquet")
    scores, _ = import_files([tmp_path / "in"], tmp_path / "out")
    assert dict(zip(scores["model"], scores["value"], strict=True)) == {"oak": 0.3, "elm": 0.4}
    (tmp_path / "in" / "board.parquet").unlink()
    (tmp_path / "out" / "scores.parquet").rename(tmp_path / "in" / "scores.parquet")
    with pytest.raises(InputError, match="of no known format"):
        import_files([tmp_path / "in"], tmp_path / "again")


@pytest.mark.parametrize("marked", ["**51,25**", "__51,25__", "51,25*", "51,25 %", "**51,25 %**"])
def test_decimal_commas_of_marked_cells(tmp_path, marked):
    text = f"model;ledger;quiz\na;{marked};41,5\nb;42,75;30,25\nc;61,5;52,0\n"
    assert _read_back(tmp_path, text, [])["a", "ledger", None, None] == 0.5125


@pytest.mark.parametrize(
    ("values", "spreads", "items", "expected"),
    [
        ([0.61, 0.6, 0.58, 0.55], [0.01, 0.012, 0.011, 0.009], 1000, None),  # between runs: of items it would be 0.49
        ([0.61, 0.6, 0.58, 0.55], [0.488, 0.49, 0.494, 0.497], 1000, 0.0154),  # sqrt(0.61 * 0.39 / 1000)
        ([0.61, 0.55], [0.488, 0.497], 1000, 0.0154),
        ([0.61, 0.6, 0.58, 0.55], [0.0154, 0.0155, 0.0156, 0.0157], 1000, 0.0154),
        ([0.61, 0.55], [0.0154, 0.0157], 1000, 0.0154),
        ([7.1, 6.2, 5.5, 5.1], [2.1, 2.2, 2.0, 2.4], 80, None),  # a rating
        ([0.61, 0.6, 0.58, 0.55], [0.21, 0.22, 0.2, 0.24], 80, None),  # neither
    ],
)
def test_a_standard_deviation_is_one_over_items_only_where_shares_say_so(tmp_path, values, spreads, items, expected):
    rows = [f"{m},quiz,{v},{s},{items}" for m, v, s in zip("abcd", values, spreads, strict=False)]
    (tmp_path / "t.csv").write_text("\n".join(["model,benchmark,value,std,n_items", *rows]))
    scores, log = import_files([tmp_path / "t.csv"], tmp_path / "out")
    decided = [each for each in log.reading.decisions if each.what == "errors"]
    if expected is None:
        assert scores["stderr"].isna().all() and [each.decided for each in decided] == ["not used"]
        (tmp_path / "r.tsv").write_text("what\twhere\tdecided\nerrors\tquiz\tsd\n")
        scores, _ = import_files([tmp_path / "t.csv"], tmp_path / "own", ImportOptions(reading=tmp_path / "r.tsv"))
        scale = 100 if max(values) > 1 else 1
        assert scores["stderr"].iloc[0] == pytest.approx(spreads[0] / items**0.5 / scale)
    else:
        assert scores["stderr"].iloc[0] == pytest.approx(expected, rel=0.01) and decided


def _values(tmp_path, text):
    """Values by (model, benchmark), and the benchmarks whose unit is said as unsure."""
    (tmp_path / "t.csv").write_text(text)
    scores, log = import_files([tmp_path / "t.csv"], tmp_path / "values")
    found = dict(zip(zip(scores["model"], scores["benchmark"], strict=True), scores["value"].round(9), strict=True))
    return found, {each.where for each in log.reading.decisions if (each.what, each.kind) == ("unit", "unsure")}


def test_a_column_of_at_most_1_has_the_unit_of_its_table(tmp_path):
    hard = "model,mmlu,gsm8k,hle\na,71.3,90.1,0.9\nb,65.2,88.3,0.4\nc,60.4,84.4,0.6\nd,55.1,80.2,0.3\n"
    found, unsure = _values(tmp_path, hard)
    assert [found[model, "hle"] for model in "abcd"] == [0.009, 0.004, 0.006, 0.003] and unsure == {"hle"}
    assert _read_back(tmp_path, hard, [("unit", "hle", "share")])["a", "hle", None, None] == 0.9
    for shares in (
        "model,x,y\na,0.4312,71.3\nb,0.5127,65.2\nc,0.6031,60.4\nd,0.6671,55.1\n",
        "model,x,y,z\na,0.4312,71.3,90.1\nb,0.5127,65.2,88.3\nc,0.6031,60.4,84.4\nd,0.6671,55.1,80.2\n",
        "model,x,y,z,mcc\na,0.43,71.3,90.1,0.4\nb,0.51,65.2,88.3,0.5\nc,0.6,60.4,84.4,0.3\nd,0.67,55.1,80.2,0.2\n",
    ):
        found, unsure = _values(tmp_path, shares)  # more decimals than percentages have
        assert round(found["a", "x"], 2) == 0.43 and found["a", "y"] == 0.713 and not unsure
    found, unsure = _values(tmp_path, "model,y,x\na,71.3,0.9\nb,65.2,0.4\nc,60.4,0.6\nd,55.1,0.3\n")
    assert found["a", "x"] == 0.9 and unsure == {"x"}  # one column is too few to tell
    fine = "model,x,y,z\na,0.4312,71.3122,90.1\nb,0.5127,65.2,88.3\nc,0.6031,60.4,84.4\nd,0.6671,55.1,80.2\n"
    found, unsure = _values(tmp_path, fine)
    assert found["a", "x"] == 0.4312 and unsure == {"x"}  # a table that is not rounded does not tell
    found, unsure = _values(tmp_path, "model,y,z,x\na,71.3,52.2,\nb,65.2,41.1,\nc,0.6,0.4,0.3\nd,0.5,0.3,0.2\n")
    assert found["c", "x"] == 0.3  # only of models in shares


@pytest.mark.parametrize("told", ["percent", "points"])
def test_a_unit_that_is_said_of_all_is_not_that_of_a_model_whose_values_deny_it(tmp_path, told):
    """By a row about everything or by one a benchmark; a single value stays as it is said to be, and is named."""
    text = "model,x,y\na,31,26\nb,36,34\nc,41,44\nd,0.62,0.61\n"
    scale = {"percent": 1, "points": 100}[told]
    for rows in ([("unit", "*", told)], [("unit", "x", told), ("unit", "y", told)]):
        found = _read_back(tmp_path, text, rows)
        assert found["d", "x", None, None] == pytest.approx(0.62 * scale)
        assert found["c", "x", None, None] == pytest.approx(0.41 * scale)
    found = _read_back(tmp_path, text, [("unit", "*", told), ("unit", "d", told)])
    assert found["d", "x", None, None] == pytest.approx(0.0062 * scale)
    (tmp_path / "t.csv").write_text(text.replace("0.61", "51"))
    _, log = import_files([tmp_path / "t.csv"], tmp_path / "o", ImportOptions(corrections={("unit", "*"): told}))
    assert [each.where for each in log.reading.decisions if each.kind == "unsure"] == ["d on x"]
    weak = "model,x,y\na,25.0,18.0\nb,0.2,0.1\nc,0.1,0.2\nd,0.1,0.0\n"  # no finer than percentages are
    found = _read_back(tmp_path, weak, [("unit", "*", told)])
    assert found["b", "x", None, None] == pytest.approx(0.002 * scale)
    assert found["a", "x", None, None] == pytest.approx(0.25 * scale)


def test_a_weak_model_does_not_become_the_first(tmp_path):
    weak = "model,mmlu,aime24,aime25\na,71.3,56.7,43.3\nb,65.2,33.3,26.7\nc,60.4,,\nd,,0.8,0.4\ne,70.1,40.0,20.0\n"
    found, _ = _values(tmp_path, weak)
    assert ("d", "aime24") not in found and ("d", "aime25") not in found and found["a", "aime24"] == 0.567
    found, _ = _values(tmp_path, weak.replace("0.8,0.4", "0.412,0.308"))
    assert found["d", "aime24"] == 0.412
    found, _ = _values(tmp_path, weak.replace("0.8,0.4", "0.81,0.42").replace("71.3,56.7", "71.31,56.67"))
    assert found["d", "aime24"] == 0.81 and found["a", "aime24"] == 0.5667  # shares of two decimals may be first
