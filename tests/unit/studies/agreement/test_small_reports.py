"""The two reports on small tables: hand-computed values, incomplete tables, bad input, hostile names."""

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from jinja2 import Template
from tests.unit.studies.agreement.conftest import (
    BENCHMARKS,
    DIRECT,
    MODELS,
    NAMES,
    SMALL,
    TRAINED,
    matrix_of,
    run,
    score_rows,
)

from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.studies.agreement.benchmarks import unequal_training
from lm_validity.studies.agreement.factors.report import report_factors
from lm_validity.studies.agreement.item_significance import use_paired_tests
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.agreement.robustness import subset_sentence
from lm_validity.studies.agreement.statistics.ranking import significant_signs
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.signal.report import report_signal
from lm_validity.summaries import Missing, is_known
from lm_validity.tables.schema import ITEMS, SELECTIONS, write_table
from lm_validity.tables.sheets import NO_STUDY
from lm_validity.words import UNDER


def test_agreement_by_hand(tmp_path):
    summary = run(tmp_path, score_rows())
    assert (summary["models"], summary["benchmarks"], summary["pairs"]) == (4, 3, 3)
    direct, trained = summary["kendall_tau"][DIRECT], summary["kendall_tau"][TRAINED]
    assert [tau for *_, tau in direct["by_pair"]] == pytest.approx([2 / 3, -1, -2 / 3])
    assert direct["mean"] == pytest.approx(-1 / 3)
    assert trained["mean"] == pytest.approx((1 + 2 * 5 / math.sqrt(30)) / 3)
    assert direct["by_benchmark"]["a"] == pytest.approx(-1 / 6)
    assert direct["by_category"] == {
        "x": {"x": pytest.approx(2 / 3), "y": pytest.approx(-5 / 6)},
        "y": {"x": pytest.approx(-5 / 6), "y": None},
    }
    assert summary["improved_pairs"] == 3
    assert direct["interval"] is None
    perplexity = summary["perplexity"]
    assert perplexity["models"] == 4
    assert perplexity["corpus_benchmark"][DIRECT] == pytest.approx((1 + 2 / 3 - 1) / 3)
    assert perplexity["corpus_corpus"] == {DIRECT: None, TRAINED: None}
    # base models m0 to m2: trained scores rise as bits per byte fall
    assert perplexity["before_after"]["base"] == pytest.approx(1.0)
    assert perplexity["before_after"]["instruction_tuned"] is None
    assert summary["families"]["F"][TRAINED] == pytest.approx(1.0)
    assert summary["families"]["G"] == {DIRECT: None, TRAINED: None}
    assert any("fewer than 3 models" in note and "G" in note for note in summary["notes"])


def test_other_wordings_are_the_prompts_part_of_the_variance(tmp_path):
    """They change no tau; on `a` they move the four models by -.1, .1, .1 and -.1; elsewhere they were not tried."""
    rows = score_rows()
    before = run(tmp_path / "before", rows)
    assert before["variance_components"][DIRECT]["prompt"] is None
    other = rows[(rows["benchmark"] == "a") & (rows["protocol"] == DIRECT)]
    other = other.assign(value=other["value"] + [-0.1, 0.1, 0.1, -0.1], prompt_variant="short", selected=False)
    found = run(tmp_path / "after", pd.concat([rows, other]))
    assert found["kendall_tau"] == before["kendall_tau"]
    error, spread = np.var([-0.1, 0.1, 0.1, -0.1], ddof=1) / 2, np.var([0.1, 0.2, 0.3, 0.4])
    assert found["variance_components"][DIRECT]["prompt"] == pytest.approx(error / spread)
    assert found["variance_components"][TRAINED]["prompt"] is None
    assert found["prompt_range"]["a"]["mean"] == pytest.approx(0.1)


def test_significance_by_hand(tmp_path):
    # steps of 0.1 with standard error 0.05: only differences above 1.96 · 0.0707 = 0.139 count
    summary = run(tmp_path, score_rows(stderr=0.05))
    # a and b directly: significant pairs of a 0-2, 0-3, 1-3; of b 0-1, 0-3, 2-3; one in common
    assert summary["significance_tau"][DIRECT]["mean"] == pytest.approx((1 / 3 - 1 - 1 / 3) / 3)


def test_factors_by_hand(tmp_path):
    summary = run(tmp_path, score_rows(), report=report_factors)
    # correlations of (1,2,3,4), (1,3,2,4), (4,3,2,1): .8, -1, -.8; the components of that matrix
    matrix = np.array([[1, 0.8, -1], [0.8, 1, -0.8], [-1, -0.8, 1]])
    expected = np.sort(np.linalg.eigvalsh(matrix))[::-1] / 3
    assert summary["explained_variance"][DIRECT] == pytest.approx(expected.tolist(), abs=1e-12)
    assert summary["pc1_compute"][TRAINED]["models"] == 4
    assert summary["pc1_compute"][TRAINED]["kendall"] == pytest.approx(1.0)
    assert set(summary["pc1_scores"][DIRECT]) == set(NAMES)


def items_of(rows: pd.DataFrame, patterns: dict[str, list[int]]) -> pd.DataFrame:
    """Items whose mean is the score: `patterns` gives each model's right answers on ten questions."""
    return pd.DataFrame(
        [
            {"model": model, "checkpoint": "final", "benchmark": benchmark, "protocol": DIRECT, "prompt": None,
             "split": "test", "doc_id": str(item), "correct": float(item in right)}
            for benchmark in ("a", "b")
            for model, right in patterns.items()
            for item in range(10)
        ]
    )  # fmt: skip


def test_items_make_significance_paired(tmp_path):
    # nested right answers: m3 is right wherever another is; 8 discordant items: 8 / sqrt(8) = 2.8, 3: 1.7
    patterns = {"m0": [0], "m1": [0, 1], "m2": [0, 1, 2, 3], "m3": list(range(9))}
    values = [len(right) / 10 for right in patterns.values()]
    rows = score_rows({DIRECT: {"a": values, "b": values, "c": SMALL[DIRECT]["c"]}}, stderr=0.2)
    write_table(items_of(rows, patterns), ITEMS, tmp_path / "items.parquet")
    unpaired = run(tmp_path, rows)
    pairs = {(a, b): tau for a, b, tau in unpaired["significance_tau"][DIRECT]["by_pair"]}
    assert pairs["a", "b"] == pytest.approx(1.0)  # m0 and m3 alone: 0.8 > 1.96 · 0.283
    report_agreement(
        *(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")),
        tmp_path / "paired", items=tmp_path / "items.parquet", section=Reports(resamples=0),
    )  # fmt: skip
    summary = json.loads((tmp_path / "paired" / "summary.json").read_text(encoding="utf-8"))
    table = pd.read_csv(tmp_path / "paired" / "tables" / "alignment.csv")
    assert any("McNemar" in note and "a, b" in note for note in summary["notes"])
    assert table["violations"].sum() == 0
    # paired: m3 beats m0 (8 of 8), m1 (7 of 7) and m2 (5 of 5: 2.24), m2 does not beat m0 (3 of 3: 1.73)
    assert summary["significance_tau"][DIRECT]["significant_pairs"] == {"a": 3, "b": 3, "c": 0}


def test_paired_significance_of_a_benchmark_where_lower_is_better_counts_the_lower_as_better(tmp_path):
    right = {"m0": [0], "m1": [0, 1], "m2": [0, 1, 2, 3], "m3": list(range(9))}
    wrong = {name: [item for item in range(10) if item not in found] for name, found in right.items()}
    rows = score_rows({DIRECT: {k: [len(v) / 10 for v in p.values()] for k, p in (("a", right), ("b", wrong))}})
    items = pd.concat(
        [items_of(rows, p).query("benchmark == @name") for name, p in (("a", right), ("b", wrong))], ignore_index=True
    )
    write_table(items, ITEMS, tmp_path / "items.parquet")
    run(tmp_path, rows, benchmarks=BENCHMARKS.replace("b,x,acc,multiple_choice,1", "b,x,acc,multiple_choice,0"))
    report_agreement(
        *(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")),
        tmp_path / "paired", items=tmp_path / "items.parquet", section=Reports(resamples=0),
    )  # fmt: skip
    summary = json.loads((tmp_path / "paired" / "summary.json").read_text(encoding="utf-8"))
    assert any("McNemar" in note and "a, b" in note for note in summary["notes"])
    assert summary["significance_tau"][DIRECT]["by_pair"] == [["a", "b", pytest.approx(1.0)]]
    (pair,) = [pair for pair in summary["alignment"] if pair["protocol"] == DIRECT]
    assert pair["opposite_significant_pairs"] == 0


def test_items_with_subjects_are_tested_by_subject(tmp_path):
    """Ten subjects of three questions; m1 is better than m0 on all of the first three subjects alone."""
    patterns = {"m0": [], "m1": list(range(9)), "m2": list(range(0, 30, 3)), "m3": list(range(29))}
    items = pd.DataFrame(
        [
            {"model": model, "checkpoint": "final", "benchmark": "a", "protocol": DIRECT, "prompt": None,
             "split": "test", "doc_id": str(item), "subject": f"s{item // 3}", "correct": float(item in right)}
            for model, right in patterns.items() for item in range(30)
        ]
    )  # fmt: skip
    write_table(items, ITEMS, tmp_path / "items.parquet")
    rows = score_rows({DIRECT: {"a": [len(right) / 30 for right in patterns.values()]}})
    matrix, nothing = matrix_of(tmp_path, rows), significant_signs(np.zeros((4, 1)), np.ones((4, 1)))
    signs, notes = use_paired_tests({DIRECT: nothing}, tmp_path / "items.parquet", matrix, ["a"])
    # pairs 01, 02, 03, 12, 13, 23; by item 9 of 9 is 3.0, by subject three sums of 3: 9 / sqrt(27) = 1.73
    assert signs[DIRECT].sign[:, 0].tolist() == [0, -1, -1, 0, -1, -1]
    assert any("subjects as clusters" in note for note in notes)
    write_table(items.assign(subject=None), ITEMS, tmp_path / "items.parquet")
    signs, notes = use_paired_tests({DIRECT: nothing}, tmp_path / "items.parquet", matrix, ["a"])
    assert signs[DIRECT].sign[0, 0] == -1 and any("McNemar" in note for note in notes)


def test_a_model_whose_items_do_not_make_up_its_score_leaves_the_others_paired(tmp_path):
    patterns = {"m0": [0], "m1": [0, 1], "m2": [0, 1, 2, 3], "m3": list(range(9))}
    values = [len(right) / 10 for right in patterns.values()]
    rows = score_rows({DIRECT: {"a": values, "b": values, "c": SMALL[DIRECT]["c"]}}, stderr=0.2)
    items = items_of(rows, patterns)
    items = items[~((items["model"] == "m1") & (items["benchmark"] == "a") & (items["doc_id"] > "4"))]
    on_b = items["benchmark"] == "b"
    items.loc[on_b & (items["model"] < "m2"), "doc_id"] += "x"  # nothing in common with m2 and m3
    items = pd.concat([items, items[on_b & (items["model"] == "m3")]])
    write_table(items, ITEMS, tmp_path / "items.parquet")
    signs, notes = use_paired_tests(
        {DIRECT: significant_signs(*(np.zeros((4, 3)), np.ones((4, 3))))},
        tmp_path / "items.parquet",
        matrix_of(tmp_path, rows),
        ["a", "b", "c"],
    )
    # m3 is surely better than m0 and m2 on a (8 of 8, 5 of 5), and than m2 on b
    assert np.abs(signs[DIRECT].sign).sum(axis=0).tolist() == [2, 1, 0]
    assert [word for word in ("m1 on a", "b (4 pairs of models)", "b (10)") if any(word in n for n in notes)] == [
        "m1 on a",
        "b (4 pairs of models)",
        "b (10)",
    ]


def test_items_that_do_not_make_up_the_score_are_not_used(tmp_path):
    rows = score_rows({DIRECT: {name: SMALL[DIRECT][name] for name in "ab"}})
    write_table(items_of(rows, {name: [0] for name in NAMES}), ITEMS, tmp_path / "items.parquet")
    run(tmp_path, rows)
    report_agreement(
        *(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")),
        tmp_path / "report", items=tmp_path / "items.parquet", section=Reports(resamples=0),
    )  # fmt: skip
    summary = json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    assert any("not the mean of its items" in note for note in summary["notes"])


def test_several_seeds_are_averaged(tmp_path):
    direct = score_rows({DIRECT: SMALL[DIRECT]})
    seeds = []
    for seed, shift in ((0, 0.0), (1, 0.1)):
        rows = score_rows({TRAINED: SMALL[TRAINED]}).assign(seed=seed)
        # in seed 1 the last model of benchmark a falls to 0.15: its mean (.4 + .15) / 2 = .275 is between .2 and .3
        rows.loc[(rows["benchmark"] == "a") & (rows["model"] == "m3"), "value"] -= 2.5 * shift
        seeds.append(rows)
    summary = run(tmp_path, pd.concat([direct, *seeds]))
    pairs = {(a, b): tau for a, b, tau in summary["kendall_tau"][TRAINED]["by_pair"]}
    assert pairs["a", "b"] == pytest.approx(4 / 6)
    # reliability: seed 0 and seed 1 order the models of a alike but for m3 against m1 and m2
    assert summary["reliability"] == {"a": pytest.approx(2 / 6), "b": pytest.approx(1), "c": pytest.approx(1)}


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_equal_means_over_seeds_are_ties_in_whatever_order_they_were_summed(tmp_path, report):
    rolled = [[0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.2, 0.3, 0.1], [0.2, 0.2, 0.2]]
    seeds = [
        score_rows({TRAINED: SMALL[TRAINED] | {"c": [scores[seed] for scores in rolled]}}).assign(seed=seed)
        for seed in range(3)
    ]
    summary = run(tmp_path, pd.concat([score_rows({DIRECT: SMALL[DIRECT]}), *seeds]), report=report)
    constant = f"{UNDER[TRAINED].capitalize()}, all models have the same score on c"
    assert any(note.startswith(constant) for note in summary["notes"])
    if report is report_agreement:
        assert summary["kendall_tau"][TRAINED]["by_benchmark"]["c"] is None


def test_only_selected_test_rows_of_the_metric_count(tmp_path):
    rows = score_rows()
    noise = pd.concat(
        [
            rows.assign(value=0.5, selected=False),
            rows.assign(value=0.5, split="validation"),
            rows.assign(value=0.5, metric="f1,none"),
            rows.assign(value=0.5, checkpoint="step100"),
            rows.assign(value=0.5, benchmark="unlisted"),
        ]
    )
    summary = run(tmp_path, pd.concat([noise, rows.assign(split=None, selected=None)]))
    assert summary["kendall_tau"][DIRECT]["mean"] == pytest.approx(-1 / 3)
    assert any("unlisted" in note for note in summary["notes"])


def test_scores_may_name_models_by_their_path(tmp_path):
    models = "model,path,family\n" + "".join(f"short-{name},{name},F\n" for name in NAMES)
    summary = run(tmp_path, score_rows(), models=models)
    assert summary["families"]["F"][DIRECT] == pytest.approx(-1 / 3)
    assert not any("in the models sheet" in note for note in summary["notes"])
    assert "short-m0" in (tmp_path / "report" / "page.json").read_text(encoding="utf-8")


def test_models_and_benchmarks_of_other_studies_stay_out(tmp_path):
    rows = score_rows()
    more = [rows.assign(model="early"), rows[rows["model"] == "m0"].assign(model="sparse")]
    others = pd.concat([*more, rows[rows["benchmark"] == "a"].assign(benchmark="curve")])
    models = "model,studies\n" + "".join(f'{name},"signal, agreement"\n' for name in NAMES) + "early,signal\n"
    models += f"sparse,{NO_STUDY}\n"
    benchmarks = BENCHMARKS.replace("higher_is_better\n", "higher_is_better,studies\n").replace(
        "choice,1\n", "choice,1,\n"
    )
    benchmarks = benchmarks.replace("true\n", "true,agreement\n").replace("rolling,0\n", "rolling,0,\n")
    summary = run(tmp_path, pd.concat([rows, others]), models, benchmarks + "curve,x,acc,multiple_choice,1,signal\n")
    assert (summary["models"], summary["benchmarks"]) == (4, 3)
    assert summary["kendall_tau"][DIRECT]["mean"] == pytest.approx(-1 / 3)
    of_others = [note for note in summary["notes"] if "early" in note]
    left_out = [note for note in summary["notes"] if "sparse" in note]
    assert len(of_others) == len(left_out) == 1 and f"`{NO_STUDY}`" in left_out[0] and of_others != left_out


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_incomplete_tables_give_a_report_that_says_so(tmp_path, report):
    table = {p: {b: list(v) for b, v in columns.items()} for p, columns in SMALL.items()}
    table[DIRECT]["a"][1] = None
    table[DIRECT]["c"] = [0.25, 0.25, 0.25, 0.25]
    for columns in table.values():
        for values in columns.values():
            values[3] = float("nan")
    summary = run(tmp_path, score_rows(table, stderr=None), report=report)
    text = " ".join(summary["notes"])
    assert "m3" in text and "c" in text
    if report is report_agreement:
        assert summary["kendall_tau"][DIRECT]["by_benchmark"]["c"] is None
        assert summary["significance_tau"][DIRECT]["mean"] is None
        assert "standard error" in text and "m1 on a" in text
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_one_protocol_alone(tmp_path, report):
    summary = run(tmp_path, score_rows({DIRECT: SMALL[DIRECT]}), report=report)
    if report is report_agreement:
        assert summary["improved_pairs"] is None
        assert summary["kendall_tau"][TRAINED]["mean"] is None
    else:
        assert summary["explained_variance"][TRAINED] is None
    assert any(TRAINED in note for note in summary["notes"])


@pytest.mark.parametrize("report", [report_agreement, report_factors])
@pytest.mark.parametrize("resamples", [0, 20])
def test_bare_sheets(tmp_path, report, resamples):
    """Sheets with ids and types only: families, sizes, directions and categories unknown."""
    summary = run(
        tmp_path,
        score_rows(),
        models="model\nm0\n",
        benchmarks="benchmark\tmetric\toutput_type\na\tacc\t\nb\tacc\t\nc\tacc\t\n",
        report=report,
        resamples=resamples,
    )
    text = " ".join(summary["notes"])
    assert "not in the models sheet" in text and "m1" in text and "wiki" in text
    assert "Direction unknown" in text


def test_too_small_an_address_space_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (14 * 10**9, 14 * 10**9))
    with pytest.raises(InputError, match="14 GB"):
        run(tmp_path, score_rows())
    assert not (tmp_path / "report").exists()


def test_hostile_names_are_text(tmp_path):
    names = ['<script>alert("m")</script>', "it's", 'a"b', "</script><b>x"]
    summary = run(tmp_path, score_rows(names=names), models='model,family\nit\'s,"<img src=x onerror=alert(1)>"\n')
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in html and "<img src=x" not in html and "</script><b>" not in html
    assert "&lt;script&gt;alert(&#34;m&#34;)&lt;/script&gt;" in html
    assert summary["models"] == 4
    table = pd.read_csv(tmp_path / "report" / "tables" / "scores.csv")
    assert set(table["model"]) == set(names)


def test_report_writes_every_figure_three_times(tmp_path, drawn):
    run(tmp_path, score_rows())
    page = json.loads((tmp_path / "report" / "page.json").read_text(encoding="utf-8"))
    figures = [figure["name"] for section in page["sections"] for figure in section["figures"]]
    assert figures
    for name in figures:
        for suffix in ("vl.json", "svg", "pdf"):
            assert (tmp_path / "report" / "figures" / f"{name}.{suffix}").stat().st_size > 300
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "src=" not in html.split("<script", 1)[0] and "@import" not in html


@pytest.mark.parametrize(("report", "name"), [(report_agreement, "agreement"), (report_factors, "factors")])
def test_every_figure_has_a_caption_in_the_workflows_report(tmp_path, report, name):
    """`snakemake --report` shows the figures with captions by file name."""
    text = (Path(__file__).parents[4] / "workflow" / "report" / f"{name}.rst").read_text(encoding="utf-8")
    wildcards = SimpleNamespace(wildcards=SimpleNamespace(figure="subsets" if name == "agreement" else "potential"))
    captions = set(Template(text).make_module({"snakemake": wildcards}).captions)
    rows = pd.concat([score_rows(names=[f"{name}{i}" for i in NAMES]) for name in "xyz"])  # enough models for subsets
    rows = rows[~((rows["model"] == "xm0") & (rows["benchmark"] == "b"))]  # a cell to complete
    models = "model,family,parameters_b,tokens_b,instruction_tuned\n"
    models += "".join(f"{n}{m},{n},{i},1,{int(n == 'x')}\n" for n in "xyz" for i, m in enumerate(NAMES, start=1))
    run(tmp_path, rows.assign(stderr=0.03), models=models, report=report, resamples=20)
    page = json.loads((tmp_path / "report" / "page.json").read_text(encoding="utf-8"))
    shown = {figure["name"] for section in page["sections"] for figure in section["figures"]}
    # this table has a second factor, so no ranks that take one for granted
    absent = {f"completed_ranking_{p}" for p in (DIRECT, TRAINED)} if name == "factors" else set()
    assert shown | absent == captions and not shown & absent


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.assign(protocol="both"), "row 0, column 'protocol'"),
        (lambda rows: pd.concat([rows, rows.iloc[:1]]), "two selected test scores of m0 on a"),
        (lambda rows: rows.assign(metric="f1"), "no selected test score"),
        (lambda rows: rows.assign(stderr=-0.1), "row 0, column 'stderr'"),
        (lambda rows: rows.assign(model=rows["model"].where(rows.index != 3)), "row 3, column 'model': empty"),
        (lambda rows: rows.assign(benchmark=rows["benchmark"].mask(rows.index > 1)), "row 2, column 'benchmark'"),
    ],
)
def test_bad_tables_are_one_clear_error(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, change(score_rows()))
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("report", [report_agreement, report_factors, report_signal])
@pytest.mark.parametrize(
    ("lacking", "found", "words"),
    [
        ("value", "score", ["no column 'value'", "the columns are: model,"]),
        ("model", "model_id", ["no column 'model'", "rename 'model_id'"]),
        ("protocol", "how", ["no column 'protocol'"]),
    ],
)
def test_a_scores_table_without_a_required_column_is_refused(tmp_path, report, lacking, found, words):
    score_rows().rename(columns={lacking: found}).to_parquet(tmp_path / "scores.parquet")
    (tmp_path / "models.csv").write_text(MODELS, encoding="utf-8")
    (tmp_path / "benchmarks.csv").write_text(BENCHMARKS, encoding="utf-8")
    sheets = {name: tmp_path / f"{name}.csv" for name in ("models", "benchmarks")}
    with pytest.raises(InputError) as error:
        report(tmp_path / "scores.parquet", output=tmp_path / "report", section=Reports(resamples=0), **sheets)
    assert all(word in str(error.value) for word in ["scores.parquet", *words])


def test_two_metrics_and_no_name_for_either(tmp_path):
    rows = pd.concat([score_rows(), score_rows().assign(metric="f1,none")])
    with pytest.raises(InputError, match="several metrics"):
        run(tmp_path, rows, benchmarks="benchmark\na\nb\nc\n")


def test_the_prompts_of_instruction_tuned_models_are_shown_with_their_validation_scores(tmp_path, monkeypatch):
    rows = score_rows().assign(prompt="plain")
    tuned = rows[(rows["model"] == "m3") & (rows["protocol"] == DIRECT) & (rows["benchmark"] != "wiki")]
    validation = [
        tuned.assign(split="validation", prompt=prompt, value=value, selected=prompt == "chat")
        for prompt, value in (("plain", 0.3), ("chat", 0.5))
    ]
    chosen = {"seed": 0, "metric": "acc,none", "direct_validation_value": 0.5, "diverged": False, "selected": False}
    tried = [("plain", None, None, 0.5), ("plain", "1e-3", 2, 0.6), ("chat", "1e-3", 3, 0.7), ("chat", "3e-3", 1, 0.9)]
    selections = pd.DataFrame(
        [
            chosen
            | {"model": "m3", "benchmark": "a", "prompt": p, "learning_rate": r, "epoch": e, "validation_value": v}
            for p, r, e, v in tried
        ]
    )
    selections.loc[2, "selected"] = True
    selections.loc[3, "diverged"] = True
    other = selections.iloc[[1]].assign(model="m1", adapted_share=0.98)
    selections = pd.concat([selections.assign(adapted_share=[None, 0.14, 0.14, 0.14]), other], ignore_index=True)
    write_table(selections, SELECTIONS, tmp_path / "selections.parquet")
    run(tmp_path, pd.concat([rows, *validation]))
    read, times = pq.read_table, Counter()
    monkeypatch.setattr("pyarrow.parquet.read_table", lambda path: times.update([path.name]) or read(path))
    report_agreement(
        *(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")),
        tmp_path / "report", selections=tmp_path / "selections.parquet", section=Reports(resamples=0),
    )  # fmt: skip
    assert times == {"scores.parquet": 2, "selections.parquet": 1}  # selected scores, and all
    table = pd.read_csv(tmp_path / "report" / "tables" / "prompts.csv")
    assert list(table["benchmark"]) == ["a", "b", "c", "a"] and set(table["model"]) == {"m3"}
    assert (table["chosen"] == "chat").all() and list(table["test"]) == [0.4, 0.4, 0.1, 0.4]
    assert list(table["plain"]) == [0.3, 0.3, 0.3, 0.6] and list(table["chat"]) == [0.5, 0.5, 0.5, 0.7]
    assert table["epoch"].iloc[3] == 3 and table["learning_rate"].iloc[3] == 1e-3
    shares = pd.read_csv(tmp_path / "report" / "tables" / "adapted_shares.csv")
    assert dict(zip(shares["model"], shares["adapted_share"], strict=True)) == {"m1": 0.98, "m3": 0.14}
    notes = json.loads((tmp_path / "report" / "summary.json").read_text())["notes"]
    assert any("14% of the weights of m3 and 98% of those of m1" in note for note in notes)
    assert "for 3 of 3 choices under direct evaluation and for 1 of 1" in (
        tmp_path / "report" / "index.html"
    ).read_text(encoding="utf-8")


def sentence_on_subsets(others: list, one=0.5) -> str:
    """What is said where random subsets have these taus with the other benchmarks."""
    interval = Interval(0.41, 0.61) if is_known(one) else one
    sizes = list(range(1, len(others) + 1))
    subset = {"sizes": sizes, "random_mean": [0.8] * len(others), "others_mean": others, "one_with_others": one}
    return subset_sentence({DIRECT: subset | {"one_with_others_interval": interval}})[0]


@pytest.mark.parametrize(("shares", "said"), [([0.14, 1.0], True), ([0.9, 1.0], False), ([0.2], False), ([], False)])
def test_unequal_shares_of_adapted_weights_are_a_caution(shares, said):
    frame = pd.DataFrame({"model": [f"m{i}" for i in range(len(shares))], "adapted_share": shares})
    assert bool(unequal_training(frame)) == said


def test_one_benchmark_is_not_held_against_itself():
    alone = Missing("No benchmark has a tau with the others.")
    assert sentence_on_subsets([alone], alone) == ""
    assert "0.50 (95% interval 0.41 to 0.61)" in sentence_on_subsets([0.5, Missing("none left")])


def test_a_number_of_benchmarks_is_named_only_where_it_tells_nearly_all():
    """With eight benchmarks few others are left beside four, so that their tau may be lower."""
    assert "remaining" not in sentence_on_subsets([0.73, 0.72, 0.67, 0.66, 0.6, 0.5, 0.4, 0.3])
    found = sentence_on_subsets([0.73, 0.85, 0.91, 0.93, 0.9, 0.9, 0.9, 0.9])
    assert found.endswith("For 3 benchmarks and the remaining ones it is 0.91.")
