"""Reports of a table with missing cells: pooled agreement, ranks, predictions apart, and what is not planned."""

import numpy as np
import pytest
from tests.unit.studies.agreement import conftest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, incomplete_of, score_rows

from lm_validity.config.load import BY_SCORES
from lm_validity.config.sections import Reports
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.incomplete import fit_cells
from lm_validity.studies.agreement.report import coverage_notes, report_agreement
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import pair_signs
from lm_validity.studies.agreement.statistics.sparse import pooled_tau
from lm_validity.tables.counted import Sources
from lm_validity.words import UNDER

NAMES, TASKS = [f"m{i:02}" for i in range(14)], ["a", "b", "c", "d", "e"]
MODELS = "model,family,parameters_b,tokens_b\n" + "".join(
    f"{m},{'FG'[i % 2]},{i + 1},10\n" for i, m in enumerate(NAMES)
)
BENCHMARKS = "benchmark,category,metric,higher_is_better\n" + "".join(f"{b},x,acc,1\n" for b in TASKS)
BLOCK = 5  # the models that are trained on everything; the others on a and b
AUDITED = ("m09", "d")


@pytest.fixture(scope="module")
def tables() -> dict:
    """Scores of both protocols, the trained ones by plan: {protocol: {benchmark: values or None}}."""
    rng = np.random.default_rng(3)
    ability = np.linspace(-1, 1, 14) + 0.2 * rng.normal(size=14)
    trained, direct = (
        {b: 1 / (1 + np.exp(-ability - noise * rng.normal(size=14))) for b in TASKS} for noise in (0.2, 0.6)
    )
    return {DIRECT: direct, TRAINED: trained}


def files_of(folder, tables, change=lambda rows: rows, more=()) -> Sources:
    """The files of the planned table; `change` edits the rows of scores, `more` is planned too."""
    rows = score_rows(tables, NAMES)
    planned = [(m, b, "block") for m in NAMES[:BLOCK] for b in TASKS]
    planned += [(m, b, "cheap") for m in NAMES[BLOCK:] for b in "ab"] + [(*AUDITED, "audit"), *more]
    names = {(m, b) for m, b, _ in planned}
    kept = [p == DIRECT or (m, b) in names for p, m, b in zip(rows.protocol, rows.model, rows.benchmark, strict=True)]
    text = "".join(f"{m}\t{b}\t{why}\n" for m, b, why in planned)
    (folder / "plan.tsv").write_text(f"model\tbenchmark\treason\n{text}")
    return Sources(*conftest.written(folder, change(rows[kept]), MODELS, BENCHMARKS), plan=folder / "plan.tsv")


@pytest.fixture(scope="module")
def planned(tables, tmp_path_factory) -> tuple:
    """The folder of the report of the planned table, its rows and notes."""
    folder = tmp_path_factory.mktemp("planned")
    page, rows = conftest.reported(files_of(folder, tables), folder / "report", Reports(resamples=0), report_agreement)
    return folder, rows, " ".join(page["notes"])


def planned_cells(tables, protocol) -> np.ndarray:
    """(models, benchmarks) scores, NaN where not planned."""
    scores = np.column_stack([tables[protocol][b] for b in TASKS])
    audited = scores[9, 3]
    scores[BLOCK:, 2:], scores[9, 3] = np.nan, audited
    return scores


def notes_of(matrix) -> str:
    return " ".join(coverage_notes(Data(matrix, {})))


def test_a_planned_table_has_pooled_agreement_and_ranks(planned, tables):
    _, rows, notes = planned
    counted = [rows.value(name, protocol=TRAINED) for name in ("cells", "cells_missing", "cells_unplanned")]
    assert counted == [44, 26, 26]
    assert rows.labels("protocol", "cells") == [TRAINED]
    found = pooled_tau(pair_signs(planned_cells(tables, TRAINED)))
    pooled = rows.row("tau_pooled", protocol=TRAINED)
    assert pooled.value == pytest.approx(found.mean)
    # Student's t with 13 degrees of freedom: the jackknife is over 14 models
    reach = 2.160369 * found.standard_error
    assert (pooled.low, pooled.high) == pytest.approx((pooled.value - reach, min(1, pooled.value + reach)))
    assert -1 <= rows.value("tau_assisted", protocol=TRAINED) <= 1
    ranks = rows.all("rank_predicted", protocol=TRAINED)
    assert {row.subject for row in ranks} == set(NAMES) and min(row.value for row in ranks) == 1
    assert all(row.low <= row.high for row in ranks)
    # an audit of one cell shows nothing: every measured cell is checked
    assert rows.row("predictions_coverage").n == 44 and "44 measured cells" in notes
    assert f"{UNDER[TRAINED].capitalize()}, 26 of 70 cells are not planned" in notes and "are missing (" not in notes


def test_predictions_have_a_table_of_their_own_and_are_in_no_other(planned, tables):
    folder, rows, _ = planned
    predictions = conftest.predictions_of(rows, TRAINED)
    assert len(predictions) == 26 and (predictions.low <= predictions.predicted).all()
    truth = [tables[TRAINED][b][NAMES.index(m)] for m, b in zip(predictions.model, predictions.benchmark, strict=True)]
    plain = [np.mean(tables[TRAINED][b]) for b in predictions.benchmark]
    assert np.abs(predictions.predicted - truth).mean() < 0.8 * np.abs(np.array(plain) - truth).mean()
    lost = predictions.benchmark.value_counts()  # a benchmark's tau counts the models that have a score on it
    for row in rows.all("tau_with_others", protocol=TRAINED):
        assert row.n == len(NAMES) - lost.get(row.subject, 0)
    # the headline is over measured cells, as without the predictions
    taus = [row.value for row in rows.all("tau", protocol=TRAINED) if row.value is not None]
    assert rows.value("tau_mean", protocol=TRAINED) == pytest.approx(np.mean(taus))
    others = [p for p in (folder / "report" / "tables").glob("*.csv") if "_predicted_" not in p.name]
    text = " ".join(path.read_text() for path in others)
    assert others and not any(f"{value:.12f}"[:12] in text for value in predictions.predicted)


def test_cells_that_earlier_scores_chose_are_in_ranks_and_in_no_agreement(tables, tmp_path):
    """Absurd scores there, of models near each other, move ranks and predictions and nothing else."""
    chosen, found = [(m, "c") for m in NAMES[-4:]], []
    for shift in (0.0, 0.5):
        changed = {b: values.copy() for b, values in tables[TRAINED].items()}
        changed["c"][-4:] -= shift
        more = [(*pair, BY_SCORES) for pair in chosen]
        matrix = read_score_matrix(files_of(tmp_path, {DIRECT: tables[DIRECT], TRAINED: changed}, more=more))
        found.append((matrix, *incomplete_of(matrix, TRAINED)))
    (without, one, predictions), (poisoned, other, _) = found
    np.testing.assert_array_equal(without.oriented(TRAINED), poisoned.oriented(TRAINED))
    assert np.isfinite(without.oriented(TRAINED)).sum() == 44 and np.isfinite(without.measured(TRAINED)).sum() == 48
    # also the assisted tau, whose predictions must not have seen them; and as if they had never been measured
    never, _ = incomplete_of(read_score_matrix(files_of(tmp_path, tables)), TRAINED)
    for name in ("tau_pooled", "tau_assisted"):
        assert one.row(name) == other.row(name) == never.row(name)
    counted = ("cells", "cells_by_scores", "cells_missing", "cells_unplanned")
    assert [one.value(name) for name in counted] == [48, 4, 22, 22]
    assert other.row("rank_predicted", subject="m13").high > one.row("rank_predicted", subject="m13").high + 1
    assert not set(zip(predictions.model, predictions.benchmark, strict=True)) & set(chosen)
    assert (TRAINED, "c") in set(zip(without.selected.protocol, without.selected.benchmark, strict=True))
    aside = without.selected[without.selected.model.isin(NAMES[-4:]) & without.selected.benchmark.eq("c")]
    assert set(aside.protocol) == {DIRECT}
    notes = notes_of(without)
    assert "4 of 70 cells were chosen by earlier scores" in notes and "22 of 70 cells are not planned" in notes
    assert "cells are missing (" not in notes


def test_a_loss_has_a_range_only_where_its_metric_is_a_share_of_errors(tables, tmp_path):
    """Higher is better on a, b and c; d is an error rate, e a Brier score."""
    metrics = dict(zip(TASKS, ["acc", "acc", "acc", "error", "brier_score"], strict=True))
    files = files_of(tmp_path, tables, lambda rows: rows.assign(metric=rows.benchmark.map(metrics)))
    lines = [f"{b},x,{metric},{int(metric == 'acc')}\n" for b, metric in metrics.items()]
    files.benchmarks.write_text("benchmark,category,metric,higher_is_better\n" + "".join(lines))
    link = fit_cells(read_score_matrix(files), TRAINED).process.link
    assert list(link.width) == [1, 1, 1, 1, 0] and list(link.low[:4]) == [0, 0, 0, -1]


def test_what_is_planned_and_not_there_is_missing(tables, tmp_path):
    without = files_of(tmp_path, tables, lambda rows: rows[~((rows.protocol == TRAINED) & (rows.model == "m01"))])
    matrix = read_score_matrix(without)
    found, _ = incomplete_of(matrix, TRAINED)
    assert (found.value("cells_missing"), found.value("cells_unplanned")) == (31, 26)
    assert [found.row("rank_predicted", subject=name).value is None for name in ("m01", "m02")] == [True, False]
    assert "5 of 70 cells are missing (m01 on a" in notes_of(matrix)


def test_the_first_components_share_is_not_given_for_few_models_in_common(tables, tmp_path):
    _, rows = conftest.reported(files_of(tmp_path, tables), tmp_path / "report", Reports(resamples=0), report_factors)
    for quantity in ("explained_variance", "factors"):
        (row,) = rows.all(quantity, protocol=TRAINED)
        assert row.value is None and "fewer than half of the models in common" in row.reason
    assert len(rows.all("explained_variance", protocol=DIRECT)) == 5


def test_an_audit_of_enough_cells_decides_how_wide_intervals_are(tables, tmp_path):
    """Twenty-one random cells of the rest, far off what the others say: coverage 0, and intervals that hold them."""
    rest = [(m, b) for m in NAMES[BLOCK:] for b in "cde"][:21]
    plan = files_of(tmp_path, tables).plan
    lines = [f"{m}\t{b}\t{'audit' if (m, b) in rest else 'block'}\n" for m in NAMES for b in TASKS]
    plan.write_text("model\tbenchmark\treason\n" + "".join(lines))
    found = {}
    for name, shift in (("like the others", 0.0), ("far off", 0.5)):
        changed = {b: tables[TRAINED][b].copy() for b in TASKS}
        for m, b in rest:
            value = changed[b][NAMES.index(m)]
            changed[b][NAMES.index(m)] = np.clip(value + (-shift if value > 0.5 else shift), 0.02, 0.98)
        rows = score_rows({DIRECT: tables[DIRECT], TRAINED: changed}, NAMES)
        rows = rows[~((rows.protocol == TRAINED) & (rows.model == "m13") & (rows.benchmark == "e"))]
        matrix = read_score_matrix(Sources(*conftest.written(tmp_path, rows, MODELS, BENCHMARKS), plan=plan))
        found[name] = fit_cells(matrix, TRAINED)
    assert {(trust.source, trust.cells) for trust in found.values()} == {("audit", 21)}
    far, like = found["far off"], found["like the others"]
    assert far.coverage < 0.5 < 0.85 < like.coverage and far.widening > 2 * like.widening


def test_what_is_pooled_over_both_protocols_is_over_the_same_comparisons(planned, tables):
    _, rows, _ = planned
    means = {p: pooled_tau(pair_signs(planned_cells(tables, p))) for p in (DIRECT, TRAINED)}
    for p, one in means.items():
        assert rows.value("tau_pooled_in_both", protocol=p, pairs="all") == pytest.approx(one.mean)
    change = rows.row("tau_pooled_change", pairs="all")
    assert change.value == pytest.approx(means[TRAINED].mean - means[DIRECT].mean)
    assert change.n == means[DIRECT].comparisons and change.low < change.value < change.high


@pytest.mark.parametrize(("trained", "known"), [(3, False), (6, True)])
def test_few_models_of_many_say_nothing_about_the_others(tables, tmp_path, trained, known):
    """A run that is not at its end: of 14 models, the first few have scores under train before test."""
    rows = score_rows(tables, NAMES)
    rows = rows[(rows.protocol == DIRECT) | rows.model.isin(NAMES[:trained])]
    files = conftest.written(tmp_path, rows, MODELS, BENCHMARKS)
    (page, of_agreement), (_, rows) = (
        conftest.reported(Sources(*files), tmp_path / report.__name__, Reports(resamples=20), report)
        for report in (report_agreement, report_factors)
    )
    for name, place in (("tau_pooled", {"protocol": TRAINED}), ("tau_pooled_change", {"pairs": "all"})):
        assert (of_agreement.row(name, **place).low is not None) == known
    assert any("changes the" in finding["sentence"] for finding in page["findings"]) == known
    assert np.isfinite(rows.value("explained_variance", protocol=TRAINED, component=1)) == known
