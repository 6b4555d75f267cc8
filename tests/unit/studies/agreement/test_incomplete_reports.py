"""The two reports on tables of which something cannot be computed: they are written and say why."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import (
    BENCHMARKS,
    DIRECT,
    MODELS,
    NAMES,
    SMALL,
    TRAINED,
    agreement_of,
    factors_of,
    factors_page,
    run,
    score_rows,
)

from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.missing import Missing, is_known
from lm_validity.site.partial import lead_to_report, mark_unfinished
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.reasons import NO_SPREAD
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.agreement.similar import by_ratio, by_ratio_in_both
from lm_validity.studies.agreement.tau import improvement
from lm_validity.tables.reruns import NOT_MEASURED

FOUR = ["a", "b", "c", "d"]
FOUR_BENCHMARKS = "benchmark,category,metric,higher_is_better\n" + "".join(f"{name},x,acc,1\n" for name in FOUR)


def four_benchmarks(seed=0) -> dict[str, list]:
    rng = np.random.default_rng(seed)
    return {name: [0.1 * i + 0.02 * rng.random() for i in range(4)] for name in FOUR}


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
        assert any(TRAINED in note for note in summary["notes"])
    else:
        (row,) = [row for row in summary["rows"] if (row.quantity, row.protocol) == ("explained_variance", TRAINED)]
        assert row.reason_code == "no_scores"


@pytest.mark.parametrize("report", [report_agreement, report_factors])
@pytest.mark.parametrize("resamples", [0, 20])
def test_bare_sheets(tmp_path, report, resamples):
    """Sheets with ids and types only: families, sizes, directions and categories unknown."""
    summary = run(
        tmp_path,
        score_rows().assign(metric=None),
        models="model\nm0\n",
        benchmarks="benchmark\toutput_type\na\t\nb\t\nc\t\n",
        report=report,
        resamples=resamples,
    )
    text = " ".join(summary["notes"])
    assert "not in the models sheet" in text and "m1" in text and "wiki" in text
    assert "Direction unknown" in text


def test_a_model_with_few_benchmarks_is_picked_without_an_interval_and_its_row_says_why(tmp_path):
    table = four_benchmarks()
    for name in "bcd":
        table[name][3] = None
    sheets = {"models": MODELS.replace("m3,G,4,", "m3,G,,"), "benchmarks": FOUR_BENCHMARKS}  # its size is not known
    page, rows = factors_page(tmp_path, score_rows({DIRECT: table}), resamples=300, **sheets)
    rank = rows.row("first_component_rank", subject="m3", protocol=DIRECT)
    assert (rank.value, rank.low) == (1, None) and "has one of them" in rank.reason
    (sentence,) = [finding.sentence for finding in page.findings if "rank 1 of" in finding.sentence]
    assert sentence.startswith("m3 ") and sentence.endswith("rank 1 of 4.")


def test_resamples_that_all_agree_give_no_interval(tmp_path):
    summary = agreement_of(tmp_path, score_rows({DIRECT: four_benchmarks()}), 100, benchmarks=FOUR_BENCHMARKS)
    tau = summary["kendall_tau"][DIRECT]
    assert tau["mean"] == 1 and tau["interval"] == Missing(NO_SPREAD)
    assert tau["by_benchmark_interval"]["a"] == Missing(NO_SPREAD)


def test_prompts_are_shown_at_the_checkpoint_whose_test_score_counts(tmp_path):
    rows = score_rows().assign(prompt="plain")
    tuned = rows[(rows["model"] == "m3") & (rows["protocol"] == DIRECT) & (rows["benchmark"] == "a")]
    validation = [
        tuned.assign(
            split="validation", metric="acc", prompt=prompt, value=value, checkpoint=checkpoint, selected=chosen
        )
        for prompt, checkpoint, value, chosen in (
            ("plain", "step1", 0.9, True),
            ("chat", "step1", 0.1, False),
            ("plain", "final", 0.3, False),
            ("chat", "final", 0.5, True),
        )
    ]
    only_early = tuned.assign(model="m0", split="validation", checkpoint="step1")
    run(tmp_path, pd.concat([rows, *validation, only_early, only_early.assign(checkpoint="step2")]))
    table = pd.read_csv(tmp_path / "report" / "tables" / "prompts.csv")
    assert table[["model", "benchmark", "plain", "chat", "chosen"]].to_numpy().tolist() == [
        ["m3", "a", 0.3, 0.5, "chat"]
    ]


def test_where_both_prompts_are_marked_as_chosen_the_one_scored_on_test_is_shown(tmp_path):
    rows = score_rows().assign(prompt="plain")
    tuned = rows[(rows["model"] == "m3") & (rows["protocol"] == DIRECT) & (rows["benchmark"] == "a")]
    run(tmp_path, pd.concat([rows, *(tuned.assign(split="validation", prompt=p) for p in ("chat", "plain"))]))
    table = pd.read_csv(tmp_path / "report" / "tables" / "prompts.csv")
    assert table["chosen"].tolist() == ["plain"]


def test_the_only_checkpoint_of_a_model_is_used_whatever_its_name(tmp_path):
    rows = score_rows()
    rows.loc[rows["model"] == "m2", "checkpoint"] = "main"
    summary = run(tmp_path, rows)
    assert summary["models"] == 4
    assert "No final checkpoint: the only or last one is used for m2 (main)." in summary["notes"]
    assert run(tmp_path, rows.assign(checkpoint="main"))["models"] == 4


def test_the_last_of_several_checkpoints_is_used(tmp_path):
    rows = score_rows()
    early = rows.assign(checkpoint="step1", iteration=1, value=0.5)
    summary = run(tmp_path, pd.concat([early, rows.assign(checkpoint="step2", iteration=2)]))
    assert summary["kendall_tau"][DIRECT]["mean"] == pytest.approx(-1 / 3)
    used = ", ".join(f"{name} (step2)" for name in NAMES)
    assert f"No final checkpoint: the only or last one is used for {used}." in summary["notes"]


def test_checkpoints_of_which_the_last_is_unknown_are_an_error_that_names_them(tmp_path):
    rows = score_rows()
    early = rows[rows["model"] == "m2"].assign(checkpoint="step1", iteration=1)
    rows.loc[rows["model"] == "m2", "checkpoint"] = "main"
    with pytest.raises(InputError, match="m2 has the checkpoints main, step1, none of them 'final', and how far main"):
        run(tmp_path, pd.concat([rows, early]))


def findings(folder) -> str:
    page = json.loads((folder / "report" / "page.json").read_text(encoding="utf-8"))
    return " ".join(f["sentence"] for f in page["findings"]) + " ".join(s["finding"] for s in page["sections"])


def test_no_correction_by_a_ceiling_near_zero_or_of_few_models(tmp_path):
    tables = {
        "fewer than 5": {p: {name: [0.5, 0.51] for name in "abc"} for p in (DIRECT, TRAINED)},
        "not clearly above 0": {p: {name: [0.5] * 5 + [0.50001] for name in "abc"} for p in (DIRECT, TRAINED)},
    }
    for reason, table in tables.items():
        models = [f"m{i}" for i in range(len(table[DIRECT]["a"]))]
        for tau in agreement_of(tmp_path, score_rows(table, names=models, stderr=0.05))["kendall_tau"].values():
            assert is_known(tau["ceiling"]) and reason in tau["corrected"]["mean"].reason


def test_pairs_that_agree_more_on_significant_differences_are_of_those_compared_on_them(tmp_path):
    rows = score_rows()
    rows.loc[rows["benchmark"] == "c", "stderr"] = None
    summary = run(tmp_path, rows)
    assert summary["compared_pairs"] == 3
    assert (summary["significance_tau"]["improved_pairs"], summary["significance_tau"]["compared_pairs"]) == (1, 1)
    assert "1 of 1 pairs agree more" in findings(tmp_path)


def paired_test(scores, models, benchmarks, output, section) -> None:
    data = Data.of(read_score_matrix(scores, models, benchmarks), section.resamples)
    in_both = by_ratio_in_both(data, by_ratio(data, data.scores, data.ceiling))
    write_json(output / "summary.json", vars(improvement(data, in_both).test))


def test_the_paired_test_counts_the_exchanges_of_rankings(tmp_path):
    """Of three benchmarks: the four exchanges that leave the first one; those that do not have the opposite effects."""
    found = []
    for exchanged in itertools.product([False, True], repeat=2):
        table = {DIRECT: {}, TRAINED: {}}
        for name, swap in zip("abc", (False, *exchanged), strict=True):
            table[DIRECT][name], table[TRAINED][name] = (SMALL[p][name] for p in sorted(table, reverse=swap))
        found.append(run(tmp_path, score_rows(table), report=paired_test))
    effects = np.array([sign * result["effect"] for sign in (1, -1) for result in found])
    assert [result["p"] for result in found] == [(effects >= effect - 1e-9).mean() for effect in effects[:4]]


def test_one_model_has_no_taus_for_want_of_another(tmp_path):
    tau = agreement_of(tmp_path, score_rows().query("model == 'm0'"))["kendall_tau"][DIRECT]
    assert tau["mean"] == Missing("One model has scores, so there is no ranking to compare.")
    assert all(isinstance(value, Missing) for *_, value in tau["by_pair"])
    assert isinstance(tau["ceiling"], Missing) and "standard errors" not in tau["ceiling"].reason


def test_one_benchmark_has_no_mean_tau_for_want_of_another(tmp_path):
    rows = score_rows().query("benchmark == 'a'")
    tau = agreement_of(tmp_path, rows)["kendall_tau"][DIRECT]
    assert tau["mean"] == Missing("One benchmark has scores, so there are no two rankings to compare.")
    found = factors_of(tmp_path, rows, resamples=20)
    rank = found.row("first_component_rank", protocol=DIRECT, subject="m0")
    assert rank.reason == found.row("explained_variance", protocol=DIRECT, component=1).reason is not None


def test_pairs_of_benchmarks_without_a_tau_are_missing(tmp_path):
    rows = score_rows()
    apart = ((rows["benchmark"] == "a") & (rows["model"] > "m1")) | (
        (rows["benchmark"] == "b") & (rows["model"] < "m2")
    )
    tau = agreement_of(tmp_path, rows[~apart])["kendall_tau"][DIRECT]
    assert is_known(tau["mean"]) and [isinstance(value, Missing) for *_, value in tau["by_pair"]] == [
        True,
        False,
        False,
    ]


def test_large_standard_errors_leave_no_significance_tau(tmp_path):
    found = agreement_of(tmp_path, score_rows(stderr=0.5))["significance_tau"]
    assert isinstance(found[DIRECT]["mean"], Missing) and isinstance(found["improved_pairs"], Missing)


def test_perplexity_without_a_second_corpus_or_a_kind_of_model_says_so(tmp_path):
    summary = agreement_of(tmp_path, score_rows())  # one corpus; m3 alone is instruction-tuned
    assert summary["perplexity"]["corpus_corpus"][DIRECT] == Missing("There is one perplexity corpus.")
    assert is_known(summary["perplexity"]["before_after"]["base"])
    assert "(1)" in summary["perplexity"]["before_after"]["instruction_tuned"].reason
    assert isinstance(summary["kendall_tau"][DIRECT]["by_category"]["y"]["y"], Missing)
    before = score_rows()
    before = before[(before["benchmark"] != "wiki") | (before["protocol"] == DIRECT)]
    perplexity = agreement_of(tmp_path, before)["perplexity"]
    assert perplexity["corpus_benchmark"][TRAINED] == Missing("No perplexity is known.")
    without = agreement_of(tmp_path, before[before["benchmark"] != "wiki"])["perplexity"]
    assert isinstance(without, Missing)


def test_factors_that_cannot_be_computed_say_why(tmp_path):
    rows = score_rows()
    apart = (rows["benchmark"] != "c") == (rows["model"] == "m3")  # m3 on c alone, the others on a and b
    found = factors_of(tmp_path, rows[~apart], resamples=20, models="model\nm0\n")
    assert found.row("first_component_score", subject="m3", protocol=DIRECT).reason
    assert "0 models" in found.row("first_component_compute", protocol=DIRECT, correlation="kendall").reason
    assert len(found.all("explained_variance", protocol=TRAINED)) == 2
    assert found.row("explained_variance", protocol=TRAINED, component=1).low is None  # the share is 1 without a model


def test_a_complete_table_lacks_what_takes_more_models_or_resamples_and_nothing_else(tmp_path):
    table = {p: columns | {"wiki2": columns["wiki"]} for p, columns in SMALL.items()}
    benchmarks = BENCHMARKS.replace("c,y,", "c,x,") + "wiki2,p,acc,loglikelihood_rolling,0\n"
    models = "model,family,instruction_tuned\n" + "".join(f"m{i},F,{i // 2}\n" for i in range(4))
    notes = run(tmp_path, score_rows(table), benchmarks=benchmarks, models=models)["notes"]
    without_sizes = {"by_benchmark", "prompt_range"}  # nor chance levels, nor two prompts
    without_sizes |= {NOT_MEASURED.split(".")[0]}
    without_sizes |= {"Under train before test, the mean tau (0"}  # above its noise ceiling
    assert {note.split(".")[0] for note in notes} == {"kendall_tau", "subsets"} | without_sizes


def test_an_unfinished_runs_report_says_so_on_its_own_page(tmp_path):
    run(tmp_path, score_rows())
    page = tmp_path / "report" / "index.html"
    assert "evaluate_model m9" not in page.read_text()
    mark_unfinished(tmp_path / "report", ["evaluate_model m9 <b>"])
    assert "evaluate_model m9 &lt;b&gt;" in page.read_text()


def test_pages_of_an_unfinished_run_lead_to_the_finished_report(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "index.html").write_text("finished")
    pages = [tmp_path / "partial" / name / "index.html" for name in ("report", "report/cards/maps", "reports/bias")]
    for page in pages:
        page.parent.mkdir(parents=True)
        page.write_text("not complete")
    lead_to_report(tmp_path)
    for page in pages:
        (link,) = set(re.findall(r'(?:href="|url=)([^"]+)"', page.read_text()))
        assert (page.parent / link).read_text() == "finished" and "not complete" not in page.read_text()
