"""Which scores count: one answer for every report, card and command."""

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.unit.compared import compare_models

import lm_validity
from lm_validity.errors import InputError
from lm_validity.site.cards.values import CardSources
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.items.answers import model_scores
from lm_validity.studies.signal.curves import read_learning_curves
from lm_validity.tables import counted as counted_scores
from lm_validity.tables.counted import Sources, count_scores, last_checkpoints, under_metric
from lm_validity.tables.schema import SCORES, SETTINGS, read_scores, write_table

SOURCE = Path(lm_validity.__file__).parent
# the packages that read tables; formats, the schema and merging write them
READERS = ("studies", "site", "cli", "tables")
WRITERS = ("tables/formats", "site/own_task.py", *(f"tables/{name}.py" for name in (
    "schema", "merge", "told", "asking", "candidates", "roles", "metrics", "counted", "training")))  # fmt: skip
ORDERING = {"sort_values", "argsort", "lexsort", "rank", "max", "idxmax", "argmax", "nlargest", "cummax", "sorted"}


def table(folder, rows, benchmarks=None, models=None):
    """scores.parquet and the sheets, as paths; each row with what all have in common."""
    common = {"protocol": "direct", "checkpoint": "final", "metric": "acc,none", "stderr": 0.01, "n_items": 1000}
    write_table(pd.DataFrame([common | row for row in rows]), SCORES, folder / "scores.parquet")
    names, ids = sorted({row["benchmark"] for row in rows}), sorted({row["model"] for row in rows})
    listed = "benchmark,metric,higher_is_better\n" + "".join(f"{name},acc,1\n" for name in names)
    (folder / "b.csv").write_text(benchmarks or listed)
    (folder / "m.csv").write_text(models or "model\n" + "".join(f"{name}\n" for name in ids))
    return folder / "scores.parquet", folder / "m.csv", folder / "b.csv"


def values(frame, benchmark="x") -> dict[str, float]:
    return frame[frame["benchmark"] == benchmark].set_index("model")["value"].round(6).to_dict()


def test_a_benchmark_of_no_study_without_a_metric_stays_out_and_is_named(tmp_path):
    """`lm-validity report` writes such a row where it cannot know which of several metrics counts."""
    rows = [{"model": model, "benchmark": "x", "value": 0.5} for model in "ab"]
    rows += [{"model": "a", "benchmark": "y", "value": value, "metric": f"{metric},none"}
             for metric, value in (("stereotype", 0.6), ("difference", 3.0))]  # fmt: skip
    sheet = "benchmark,metric,higher_is_better,studies\nx,acc,1,\ny,,,{}\n"
    counted = count_scores(Sources(*table(tmp_path, rows, benchmarks=sheet.format("none"))))
    assert set(counted.rows["benchmark"]) == {"x"} and values(counted.rows) == {"a": 0.5, "b": 0.5}
    assert any("stay out: y." in note for note in counted.notes)
    with pytest.raises(InputError, match="y has several metrics"):
        count_scores(Sources(*table(tmp_path, rows, benchmarks=sheet.format(""))))


# ---- one last checkpoint -------------------------------------------------------------------------------------------


def test_every_page_takes_the_same_last_checkpoint(tmp_path):
    """The first checkpoint says its steps alone, the second says steps and tokens: 1000 steps were more than 4 tokens
    for the cards, which then showed the scores of the first."""
    rows = [
        {"model": model, "benchmark": name, "value": value + ability + change} | point
        for model, ability in (("a", 0.0), ("b", 0.05), ("c", 0.1), ("d", 0.12))
        for name, value in (("x", 0.5), ("y", 0.6), ("z", 0.55))
        for point, change in (
            ({"checkpoint": "s1", "iteration": 1000, "tokens_b": None}, -0.3),
            ({"checkpoint": "s2", "iteration": 2000, "tokens_b": 4.0}, 0.0),
        )
    ]
    paths = table(tmp_path, rows)
    right = {"a": 0.5, "b": 0.55, "c": 0.6, "d": 0.62}
    matrix = read_score_matrix(Sources(*paths))
    found = dict(zip(matrix.models, matrix.value["direct"][:, 0].round(6), strict=True))
    compared = compare_models("a", "d", paths[0], benchmarks=paths[2]).differences[0]
    assert found == right
    assert values(model_scores(Sources(paths[0], None, paths[2])).rows) == right
    assert values(CardSources(paths[0], paths[2], [], paths[1]).last_scores) == right
    assert compared.scores == pytest.approx((0.5, 0.62))


POINTS = {
    "final": ([("final", None, None), ("step9", 9, 9.0)], ["final"]),
    "no name is final": ([(None, None, None), ("step9", 9, 9.0)], [None]),
    "the only one": ([("main", None, None)], ["main"]),
    "tokens": ([("late", None, 20.0), ("early", None, 3.0)], ["late"]),
    "steps": ([("step2", 2, None), ("step10", 10, None)], ["step10"]),
    "steps where some have tokens": ([("s1", 1000, None), ("s2", 2000, 4.0)], ["s2"]),
    "tokens where some have steps": ([("s1", 1000, 9.0), ("s2", None, 4.0)], ["s1"]),
    "equal tokens": ([("s1", 1000, 4.0), ("s2", 2000, 4.0)], ["s2"]),
}


@pytest.mark.parametrize("name", POINTS)
def test_the_last_checkpoint_is_final_else_by_tokens_else_by_steps(name):
    points, kept = POINTS[name]
    rows = pd.DataFrame(points, columns=["checkpoint", "iteration", "tokens_b"]).assign(model="a")
    rows["iteration"] = rows["iteration"].astype("Int64")
    found = last_checkpoints(rows)
    assert rows["checkpoint"].astype(object).where(rows["checkpoint"].notna(), None)[found.rows].tolist() == kept
    assert not found.unknown


@pytest.mark.parametrize(
    "points",
    [
        [("main", None, None), ("step1", 1, None)],
        [("s1", 1000, None), ("s2", None, 4.0)],
        [("s1", 1000, 9.0), ("s2", 2000, 4.0)],
    ],
    ids=["untold", "one measure each", "contradicting"],
)
def test_a_last_checkpoint_that_is_not_known_is_refused(tmp_path, points):
    rows = [
        {"model": "a", "benchmark": "x", "value": 0.5, "checkpoint": name, "iteration": steps, "tokens_b": tokens}
        for name, steps, tokens in points
    ]
    with pytest.raises(InputError, match=f"a has the checkpoints {points[0][0]}, {points[1][0]}"):
        count_scores(Sources(*table(tmp_path, rows))).last()
    assert CardSources(*(table(tmp_path, rows)[place] for place in (0, 2)), []).last_scores.empty


# ---- one metric ----------------------------------------------------------------------------------------------------


def test_a_metric_without_a_filter_is_the_unfiltered_one():
    metrics = pd.Series(["acc", "acc,none", None, "acc,strict", "f1"])
    for name in ("acc", "acc,none"):
        assert under_metric(metrics, name).tolist() == [True, True, True, False, False]


def test_a_metric_that_other_benchmarks_have_leaves_its_benchmark_out_with_a_note(tmp_path):
    rows = [{"model": m, "benchmark": b, "value": 0.5, "metric": f"{k},none"} for m in "ab" for b, k in ("xf", "ya")]
    counted = count_scores(Sources(*table(tmp_path, rows, "benchmark,metric\nx,f\ny,f\n")))
    assert counted.benchmarks["benchmark"].tolist() == ["x"]
    assert any("f,none" in note and "a,none" in note for note in counted.notes)


# ---- nobody else decides -------------------------------------------------------------------------------------------


def columns_in(node: ast.AST) -> set[str]:
    """The names of columns that an expression holds, as texts: `rows["metric"]`, `["tokens_b"]`."""
    return {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)}


def names_metric(node: ast.AST) -> bool:
    return "metric" in columns_in(node) or (isinstance(node, ast.Attribute) and node.attr == "metric")


def decisions(tree: ast.AST):
    """Lines that order scores by how far a model was trained, or hold a metric against a wanted one."""
    for node in ast.walk(tree):
        compares = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq)
        if compares and any(map(names_metric, (node.left, *node.comparators))):
            yield node.lineno
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ORDERING and {"iteration", "tokens_b"} & columns_in(node):
                yield node.lineno


def test_no_other_module_orders_checkpoints_or_chooses_a_metric():
    for line in ('rows.sort_values("iteration")', 'rows["tokens_b"].max()', 'rows[rows["metric"] == wanted]'):
        assert list(decisions(ast.parse(line))) == [1]
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for package in READERS
        for path in sorted((SOURCE / package).rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(WRITERS)
        for line in decisions(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_the_same_files_are_read_once_and_changed_ones_again(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(counted_scores.schema, "read_scores", lambda path: read.append(path) or read_scores(path))
    rows = [{"model": model, "benchmark": "x", "value": 0.5} for model in "ab"]
    paths = table(tmp_path, rows)
    first = count_scores(Sources(*paths))
    first.rows["value"] = 0.9
    first.benchmarks["metric"] = "none"
    again = count_scores(Sources(*paths))
    assert values(again.rows) == {"a": 0.5, "b": 0.5} and list(again.benchmarks["metric"]) == ["acc,none"]
    assert len(read) == 1
    assert set(count_scores(Sources(*paths), only="a").rows["model"]) == {"a"} and len(read) == 2
    count_scores(Sources(*table(tmp_path, [row | {"value": 0.6} for row in rows])))
    settings = pd.DataFrame([{"model": "a", "benchmark": "x", "task_version": "1"}])
    assert values(count_scores(Sources(*paths)).rows) == {"a": 0.6, "b": 0.6} and len(read) == 3
    write_table(settings, SETTINGS, tmp_path / "settings.parquet")
    assert "setting_version" in count_scores(Sources(*paths)).rows and len(read) == 4
    paths[2].write_text("benchmark,metric,higher_is_better\nx,acc,0\n")
    assert not count_scores(Sources(*paths)).benchmarks["higher_is_better"].any() and len(read) == 5


def test_a_model_under_two_names_is_one_in_every_study(tmp_path):
    """`copy` has the scores of m0 at every point; `rerun` too, but the sheet says what it is; two models are two."""
    rng = np.random.default_rng(3)
    rows = [
        {"model": f"m{number}", "benchmark": benchmark, "checkpoint": f"step{step}", "iteration": step}
        | {"value": round(float(rng.uniform(0.3, 0.7)), 4)}
        for number in range(6)
        for benchmark in "qrstuvwx"
        for step in (1, 2, 3)
    ]
    rows += [row | {"model": name} for name in ("copy", "rerun") for row in rows if row["model"] == "m0"]
    models = "model,rerun_of\nm0,\ncopy,\nrerun,m0\n" + "".join(f"m{number},\n" for number in range(1, 6))
    sources = Sources(*table(tmp_path, rows, models=models))
    expected = {f"m{number}" for number in range(6)}
    matrix = read_score_matrix(sources)
    ranked = model_scores(sources)
    curves = read_learning_curves(sources, "all")
    assert set(matrix.models) == set(ranked.rows["model"]) == set(curves.curves["x"]) == expected
    assert "m0" in curves.curves["x"] and curves.training_noise["x"].reruns == 1
    for notes in (matrix.notes, ranked.notes, curves.notes):
        assert [note for note in notes if "copy (as m0)" in note] and not [
            note for note in notes if "without any" in note
        ]
    two = model_scores(sources, ("m0", "copy"))
    assert set(two.rows["model"]) == {"m0", "copy"}


def test_of_two_names_of_one_model_the_one_of_which_more_is_known_counts(tmp_path):
    """The copy is the first in the sheet and in the alphabet; without the other, the model had no size."""
    rng = np.random.default_rng(0)
    rows = [{"model": f"m{number}", "benchmark": name, "value": round(rng.uniform(), 4)}
            for number in range(8) for name in "uvwxyz"]  # fmt: skip
    rows += [row | {"model": "a-copy"} for row in rows if row["model"] == "m3"]
    sheet = "model,parameters_b\na-copy,\n" + "".join(f"m{number},{number + 1}\n" for number in range(8))
    counted = count_scores(Sources(*table(tmp_path, rows, models=sheet))).last()
    assert sorted(counted.without_copies("benchmark", "protocol").rows["model"].unique()) == [f"m{i}" for i in range(8)]
