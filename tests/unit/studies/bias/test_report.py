"""The report on small tables: keys, sentences, incomplete data, bad input, hostile names."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from lm_validity.errors import InputError
from lm_validity.pages.svg import points
from lm_validity.studies.bias.effects import biases_found, headline, without_arms
from lm_validity.studies.bias.hierarchy import fit_all, processes
from lm_validity.studies.bias.model_sections import SHORT, formula_section
from lm_validity.studies.bias.numbers import READING_NOTES, analyze_bias
from lm_validity.studies.bias.page import MOST_ROWS, bias_page, report_bias
from lm_validity.studies.bias.statistics import effects
from lm_validity.studies.bias.trials import NO_SPREAD, Study, pair_arms
from lm_validity.tables.schema import TRIALS, write_table


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The figures' files and the slices take most of a small report's time."""
    monkeypatch.setattr("lm_validity.pages.page.save_figure", lambda spec, stem: None)
    monkeypatch.setattr("lm_validity.studies.bias.hierarchy.SLICES", 20)


@pytest.fixture
def report(tmp_path, rows):
    """Write a table of simulated trials, report on it, return summary.json and the page."""

    def run(change=None, formula="equations", **layout):
        table = rows(**layout)
        if change is not None:
            table = change(table)
        write_table(table, TRIALS, tmp_path / "trials.parquet")
        report_bias(tmp_path / "trials.parquet", tmp_path / "bias", formula=formula)
        summary = json.loads((tmp_path / "bias" / "summary.json").read_text())
        return summary, (tmp_path / "bias" / "index.html").read_text()

    return run


def test_the_contract_keys(report, tmp_path):
    summary, _ = report(formula="all", sizes=(40, 80))
    assert {"cells", "tasks", "posterior", "permutation", "meta_analysis", "notes"} <= set(summary)
    assert len(summary["cells"]) == 2 * 2
    assert {"boost_mean", "boost_se", "bias_mean", "bias_se", "subsamples"} <= set(summary["cells"][0])
    assert len(summary["tasks"]) == 4
    assert len(summary["posterior"]) == 2 * 2 * 3
    row = summary["posterior"][0]
    assert row["interval89"][0] < row["beta_mean"] < row["interval89"][1]
    assert row["difference_interval89"][0] < row["difference_mean"] < row["difference_interval89"][1]
    assert row["divergences"] is None and row["rhat_max"] is None
    assert any("rhat_max" in note for note in summary["notes"])
    assert len(summary["permutation"]) == 2 * 2 * 4 * 2
    assert [row["slices"] for row in summary["meta_analysis"]] == [20, 20]
    assert set(READING_NOTES) <= set(summary["notes"])
    for name in ("cells", "settings", "tasks", "posterior", "permutation", "power"):
        assert (tmp_path / "bias" / "tables" / f"{name}.csv").is_file()


def test_all_tasks_at_the_ceiling_have_no_interval_and_say_why(report):
    summary, page = report(lambda table: table.assign(correct=table["total"]), models=1, sizes=(40,))
    bias = summary["headline"]["demo"]["bias"]
    assert bias["mean"] == 0 and bias["interval"] is None and bias["excluded_beyond"] is None
    assert "by +0.0000." in page
    assert any("4 of 4 tasks at the ceiling or the floor" in note for note in summary["notes"])


def test_nothing_found_says_what_could_have_been_found(report):
    summary, page = report(models=1, tasks=4, subsamples=8, sizes=(40,), seed=2)
    of_bias = [test["p_adjusted"] for test in summary["permutation"] if test["effect"] == "bias"]
    assert min(of_bias) > 0.05
    sizes = [row["over_tasks"]["smallest_detectable"] for row in summary["settings"] if row["effect"] == "bias"]
    assert f"{sizes[0]:.4f}" in page
    of_tests = [test["smallest_detectable"] for test in summary["permutation"] if test["effect"] == "bias"]
    assert f"{np.median(of_tests):.4f}" in page


def test_the_main_figure_agrees_with_the_headline_at_one_level(report, tmp_path):
    summary, _ = report(formula="overdispersed", tasks=6, subsamples=8, sizes=(100,), noise=0.3)
    page = json.loads((tmp_path / "bias" / "page.json").read_text())
    (table,) = [table for section in page["sections"] for table in section["tables"] if table["name"] == "settings"]
    names = {figure["name"] for section in page["sections"] for figure in section["figures"]}
    assert {"answer_bias", "answer_boost", "posterior_predictive"} <= names
    names = [column["name"] for column in table["columns"]]
    free = [row["over_tasks"]["interval"] for row in summary["settings"] if row["effect"] == "bias"]
    assert f" in {sum(low > 0 or high < 0 for low, high in free)}." in page["findings"][0]["basis"]
    for row in table["rows"]:
        of = dict(zip(names, row, strict=True))
        fit = next(fit for fit in summary["posterior"] if fit["effect"] == of["effect"])
        assert [of["marginal_low"], of["marginal_high"]] == fit["marginal_interval"]
        assert fit["marginal_interval"][0] < fit["marginal_mean"] < fit["marginal_interval"][1]


def test_a_planted_bias_is_the_headline(report):
    summary, page = report(formula="overdispersed", models=1, tasks=8, subsamples=12, sizes=(100,), shift={"test": 0.6})
    bias = summary["headline"]["demo"]["bias"]
    assert bias["interval"][0] > 0.05 and bias["positive"] == 8
    assert f"{bias['mean']:+.4f}" in page
    fit = next(row for row in summary["posterior"] if row["effect"] == "bias")
    assert fit["interval89"][0] > 0.3


DECIDED = {  # what the page's heading and the answer on a site's first page begin with
    "yes": ("Having read the test's texts changes scores", "Yes:"),
    "lower": ("Having read the test's texts changes scores", "It lowers scores:"),
    "none": ("No effect found", "No effect found:"),
    "one task": ("Not known:", "Not known:"),
    "on one of 4": (
        "Having read the test's texts changes scores on 1 of 4 tasks, not shown",
        "On 1 of 4 tasks, not shown",
    ),
    "not measured": ("Not measured:", None),
}


def of_first(table):
    """The rows of the first task after reading the test's texts."""
    return (table["task"] == "task0") & (table["arm"] == "test")


@pytest.mark.parametrize(
    ("decided", "layout"),
    [
        ("yes", {"tasks": 6, "shift": {"test": 0.8}}),
        ("lower", {"tasks": 6, "shift": {"test": -0.8}}),
        ("none", {"seed": 2}),
        ("one task", {"tasks": 1}),
        ("on one of 4", {"change": lambda table: table.assign(correct=table["correct"].where(~of_first(table), 38))}),
        ("not measured", {"arms": ("base", "extra")}),
    ],
)
def test_the_page_begins_with_what_the_interval_over_tasks_decides(report, tmp_path, decided, layout):
    summary, _ = report(models=1, sizes=(40,), **layout)
    page, bias = json.loads((tmp_path / "bias" / "page.json").read_text()), summary["headline"]["demo"]["bias"]
    heading, answer = DECIDED[decided]
    assert page["lede"]["heading"].startswith(heading) and 'role="img"' in page["picture"]["svg"]
    assert len(page["answers"]) == (answer is not None)
    if bias is None:
        return
    (shown,) = page["answers"]
    ends = [] if bias["interval"] is None else bias["interval"]
    printed = [points(value, 2, signed=True) for value in (bias["mean"], *ends)]
    assert shown["sentence"].startswith(answer) and shown["interval"] == page["lede"]["interval"]
    assert re.findall(r"[+−]\d+\.\d+", page["lede"]["sentence"] + page["lede"]["interval"]) == printed
    for picture in (shown["svg"], page["picture"]["svg"]):
        label = re.search('aria-label="([^"]*)"', picture)[1]
        assert all(number in label for number in printed)
    for said in (page["lede"]["sentence"], shown["sentence"]):
        assert len(said.split()) <= 18


def test_a_heading_over_several_experiments_counts_them(rows):
    clean = rows(models=1, tasks=5, sizes=(80,)).assign(experiment="clean")
    planted = rows(models=1, tasks=4, sizes=(40,), shift={"test": 2.5}, seed=1).assign(experiment="planted")
    study = Study(pair_arms(pd.concat([clean, planted], ignore_index=True)))
    summary = analyze_bias(study, formula="equations")
    page = bias_page(study, summary)
    assert page.lede.heading.endswith(" in 1 of 2 experiments")  # and the one that decides is quoted
    planted_bias = summary.headline["planted"]["bias"]
    values = [task.bias for task in summary.tasks if task.experiment == "planted"]
    reach = stats.t.ppf(1 - 0.05 / 2 / 2, len(values) - 1) * stats.sem(values)  # of two experiments
    ends = planted_bias.mean - reach, planted_bias.mean + reach
    quoted = [points(value, 2, signed=True) for value in (planted_bias.mean, *ends)]
    assert page.lede.interval.startswith("95% over 2 experiments: ")
    assert quoted == re.findall(r"[+−]\d+\.\d+", page.lede.sentence + page.lede.interval)
    answer = page.answers[0]
    assert answer.interval == page.lede.interval and answer.sentence.startswith("Yes, in 1 of 2 experiments:")
    assert re.search(r": in planted by \+\d+\.\d+ points$", answer.sentence)
    low, high = planted_bias.interval
    fallen = summary.headline["clean"] | {
        "bias": replace(planted_bias, mean=-planted_bias.mean, interval=(-high, -low))
    }
    page = bias_page(study, replace(summary, headline=summary.headline | {"clean": fallen}))
    for words in (page.lede.heading, page.answers[0].sentence):
        assert "raises scores in 1 and lowers them in 1 of 2 experiments" in words and len(words.split()) <= 18


def test_an_effect_in_one_of_many_experiments_is_held_against_their_number():
    """p of the t test by scipy, times the number of experiments; the interval of summary.json decides."""
    values, others = np.array([0.01, 0.02, 0.05, 0.03, 0.01]), np.array([-0.01, 0.02, -0.03, 0.02, 0.0])
    p = stats.ttest_1samp(values, 0).pvalue
    assert 0.05 / 4 < p < 0.05
    for names, found in (("", True), ("b", 2 * p < 0.05), ("bc", 3 * p < 0.05), ("bcd", False)):
        effects_of = {"a": values} | dict.fromkeys(names, others)
        rows = [(name, f"t{place}", change, without_arms("boost"))
                for name, changes in effects_of.items() for place, change in enumerate(changes)]  # fmt: skip
        rows.append(("no test arm", "t0", without_arms("bias"), without_arms("boost")))
        means = headline(pd.DataFrame(rows, columns=["experiment", "task", "bias", "boost"]))
        bias, number = means["a"]["bias"], 1 + len(names)
        test = stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / number)
        assert bias.interval == pytest.approx((test.low, test.high)) and bias.experiments == number
        assert biases_found(means)["a"] == (bias.interval[0] > 0) == found
        assert biases_found(means)["no test arm"] is None
        at_once = stats.ttest_1samp(values, 0, alternative="less").confidence_interval(1 - 0.05 / number)
        assert bias.excluded_beyond == pytest.approx(at_once.high)
        of_margin = stats.ttest_1samp(values, effects.MARGINS[0], alternative="less").pvalue
        assert bias.equivalence[0].p == pytest.approx(min(1, number * of_margin))
        shift = bias.smallest_detectable / stats.sem(values)
        critical = stats.t.ppf(1 - 0.025 / number, len(values) - 1)
        assert stats.nct.sf(critical, len(values) - 1, shift) == pytest.approx(effects.POWER, abs=1e-6)


def test_a_picture_of_many_tasks_has_those_that_change_most(rows):
    table = rows(models=1, tasks=MOST_ROWS + 5, subsamples=2, sizes=(20,), arms=("extra", "test"))
    study = Study(pair_arms(table))
    summary = analyze_bias(study, formula="equations")
    page = bias_page(study, summary)
    sizes = {row.task: abs(row.bias) for row in summary.tasks}
    shown = set(re.findall(">(task[0-9]+)<", page.picture.svg))
    assert len(shown) == MOST_ROWS
    assert min(sizes[task] for task in shown) >= max(sizes[task] for task in set(sizes) - shown)


FINDINGS_OF_TWO_EXPERIMENTS = [
    ("The answer by setting", "1 setting", "1 setting"),
    ("Task by task", "of 5 tasks", "3 of 3 tasks"),
    ("How the conclusion depends on the formula", "of 1 setting", "1 of 1 setting (1 up, 0 down)"),
    ("Tests by task", "of 5 tests", "of 3 tests"),
    ("With one subsample per task", "%", "%"),
    ("What could have been found", "of 1 cell", "of 1 cell"),
]


def test_no_section_pools_experiments(rows):
    clean = rows(models=1, tasks=5, sizes=(80,)).assign(experiment="clean")
    planted = rows(models=1, tasks=3, sizes=(40,), shift={"test": 2.5}, seed=1).assign(experiment="planted")
    study = Study(pair_arms(pd.concat([clean, planted], ignore_index=True)))
    page = bias_page(study, analyze_bias(study, formula="equations"))
    sections = {section.title: section for section in page.sections}
    for title, *expected in FINDINGS_OF_TWO_EXPERIMENTS:
        of_clean, _, of_planted = sections[title].finding.partition(" planted: ")
        assert of_clean.startswith("clean: ") and expected[0] in of_clean, title
        assert expected[1] in of_planted, title
    formulas = sections["How the conclusion depends on the formula"]
    titles = [figure.title for figure in formulas.figures if figure.name.startswith("calibration")]
    assert titles == ["Predicted and observed accuracy: clean", "Predicted and observed accuracy: planted"]
    of_clean, _, of_planted = formulas.explanation.rpartition("planted: ")
    assert "n = 80" in of_clean and "n = 40" in of_planted and "n = 80" not in of_planted


def test_formulas_that_disagree_on_an_effect_are_a_finding(report, tmp_path):
    def excluding(**world):
        summary, _ = report(formula="all", models=1, **world)
        fits = [fit for fit in summary["posterior"] if fit["effect"] == "bias"]
        findings = json.loads((tmp_path / "bias" / "page.json").read_text())["findings"]
        signs = {fit["formula"]: [fit["interval89"][0] > 0, fit["interval89"][1] < 0] for fit in fits}
        return signs, [found for found in findings if SHORT["overdispersed"] + " in" in found["sentence"]]

    signs, findings = excluding(tasks=6, subsamples=10, sizes=(100,), shift={"test": 0.8})
    assert list(signs.values()) == [[True, False]] * 3 and findings == []
    signs, findings = excluding(tasks=4, subsamples=6, sizes=(400,), noise=0.6, seed=3)
    assert signs["overdispersed"] == [False, False] != signs["equations"] and len(findings) == 1


def test_formulas_that_disagree_on_sign_or_setting_are_a_finding(trials):
    study = Study(trials(models=1, tasks=2, sizes=(40, 80)))
    fitted = fit_all(study.trials, "equations", "laplace")
    fits = fitted.of("bias")
    up, down, none = (0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1)

    def finding(equations, notebooks):
        told = [replace(fit, interval=interval) for fit, interval in zip(fits, equations, strict=True)]
        told += [
            replace(fit, interval=interval, formula="notebooks") for fit, interval in zip(fits, notebooks, strict=True)
        ]
        return [found.sentence for found in formula_section(study, replace(fitted, fits=tuple(told)), []).findings]

    assert finding((up, none), (up, none)) == []
    (opposite,) = finding((up, none), (down, none))
    for name, signs in (("equations", "1 up, 0 down"), ("notebooks", "0 up, 1 down")):
        assert f"{SHORT[name]} in 1 of 2 settings ({signs})" in opposite
    (elsewhere,) = finding((up, none), (none, up))
    assert re.search(f"{SHORT['equations']} .*n = 40 up.*{SHORT['notebooks']} .*n = 80 up", elsewhere)


def test_pretraining_losses_are_shown_where_known(report):
    def with_losses(table):
        known = table["arm"].map({"extra": 2.0, "test": 2.5})
        return table.assign(pretraining_loss=known + 0.1 * table["subsample"])

    summary, page = report(with_losses, models=1, sizes=(40,), subsamples=3)
    row = summary["pretraining_loss"][0]
    assert row["extra"] == pytest.approx(2.1) and row["test"] == pytest.approx(2.6)
    assert "pretraining_loss" in page
    summary, page = report(models=1, sizes=(40,))
    assert summary["pretraining_loss"] == [] and "pretraining_loss" not in page
    assert "demo: " not in page, "one experiment is not named"
    assert not any("gaps" in note for note in summary["notes"])


@pytest.mark.parametrize(
    "layout",
    [
        {"models": 1},
        {"tasks": 1},
        {"subsamples": 1},
        {"models": 1, "tasks": 1, "subsamples": 1, "sizes": (40,)},
        {"arms": ("extra", "test")},
        {"arms": ("base", "extra")},
    ],
)
def test_incomplete_data_are_reported_with_what_is_missing(report, tmp_path, layout):
    summary, page = report(**({"sizes": (40,)} | layout))
    assert "NaN" not in json.dumps(summary) and page
    notes = " ".join(summary["notes"])
    if "models" in layout:
        assert "one language model" in notes
    if layout.get("tasks") == 1:
        assert summary["cells"][0]["bias_se"] is None and effects.ONE_TASK in notes
    if layout == {"tasks": 1}:
        assert summary["meta_analysis"][0]["slices"] > 0
        assert summary["meta_analysis"][0]["share_t_excluding_zero"] is None
        assert f"meta_analysis.share_t_excluding_zero: {effects.META_OF_ONE_TASK}" in notes
        assert "in unknown" not in page
    if layout.get("subsamples") == 1:
        assert summary["meta_analysis"][0]["share_beyond"] is None and effects.ONE_SUBSAMPLE in notes
    if layout in ({"tasks": 1}, {"subsamples": 1}):
        assert summary["power"][0]["power"] is None and summary["power"][0]["tasks_needed"] is None
        assert effects.TOO_FEW in notes and "never" not in notes
        document = json.loads((tmp_path / "bias" / "page.json").read_text())
        (table,) = [table for part in document["sections"] for table in part["tables"] if table["name"] == "power"]
        assert set(table["reasons"].values()) == {effects.TOO_FEW}
        assert summary["power"][0]["tasks"] == layout.get("tasks", 4)
    if "arms" in layout:
        missing = ({"base", "extra", "test"} - set(layout["arms"])).pop()
        assert f"have no arm {missing}" in notes


def only_the_first_task_of_lm1(table):
    return table[(table["language_model"] == "lm0") | (table["task"] == "task0")]


def test_a_findings_basis_is_of_the_trials_that_it_rests_on(report):
    def change(table):
        table = only_the_first_task_of_lm1(table)
        kept = (table["language_model"] == "lm0") & (table["task"] == "task0")
        return table[kept | (table["arm"] != "test")]

    summary, page = report(change, tasks=3, subsamples=4, sizes=(40,))
    bias, _, boost = page.partition("Pretraining on other texts")
    assert (
        re.search(r"1 language model, 1 setting [^,]+, 4 trials\.", bias) and "Model-free: mean over the tasks" in bias
    )
    assert re.search(r"2 language models, 1 setting [^,]+, 16 trials\.", boost)
    assert [row["bias_trials"] for row in summary["cells"]] == [4, 0]
    notes = " ".join(summary["notes"])
    assert f"cells.bias_mean, cells.bias_se, tasks.bias: {without_arms('bias').reason}" in notes
    assert [row["bias"] is None for row in summary["tasks"]] == [False, True, True]
    assert summary["headline"]["demo"]["bias"]["interval"] is None and effects.ONE_TASK in notes
    assert summary["headline"]["demo"]["boost"]["interval"] is not None


def test_cells_that_lack_tasks_or_subsamples_are_named(report):
    def change(table):
        table = only_the_first_task_of_lm1(table)
        return table[(table["language_model"] == "lm0") | (table["subsample"] > 0)]

    gap = "lm1 at m = 16, n = 40 and m = 16, n = 80 has no trial of task1, task2 and fewer of task0 (3 of 4)"
    summary, _ = report(change, tasks=3, subsamples=4)
    assert (
        sum(f"Experiment demo has gaps, for the boost and the bias: {gap}." in note for note in summary["notes"]) == 1
    )


def test_null_standard_errors_have_their_note_where_one_task_alone_has_the_arms(report):
    summary, _ = report(lambda table: table[(table["arm"] != "base") | (table["task"] == "task0")], sizes=(40,))
    row, notes = summary["cells"][0], " ".join(summary["notes"])
    assert row["tasks"] == 4 and row["boost_se"] is None and row["bias_se"] is not None
    assert summary["headline"]["demo"]["boost"]["interval"] is None
    assert effects.ONE_TASK in notes and summary["headline"]["demo"]["bias"]["interval"] is not None


def test_mixed_provenance_is_said_on_the_page(report):
    def drift(table):
        odd = (table["n"] == 80) & (table["arm"] == "base")
        table.loc[odd, "correct"] = (table.loc[odd, "correct"] + 20).clip(upper=80)
        return table

    summary, page = report(drift, tasks=6, subsamples=10)
    assert sum(row["mixed"] for row in summary["base_drift"]) == 2
    assert "Mixed provenance" in page


def test_a_drift_of_base_accuracies_without_spread_has_a_reason_for_its_null(report):
    def constant(table):
        table.loc[table["arm"] == "base", "correct"] = table["n"].map({40: 20, 80: 50})
        return table

    summary, page = report(constant, models=1)
    assert [(row["z"], row["p"], row["mixed"]) for row in summary["base_drift"]] == [(None, 0.0, True)]
    notes = " ".join(summary["notes"])
    assert "for n = 40 (no spread within subsamples)" in notes and "z = inf" not in page
    assert f"base_drift.z: {NO_SPREAD}" in notes


def test_subsamples_that_would_never_suffice_are_said(report):
    def tasks_far_apart(table):
        shift = table["task"].map({f"task{task}": 3 * task for task in range(4)})
        return table.assign(correct=10 + table["subsample"] % 2 + (table["arm"] == "test") * shift)

    summary, _ = report(tasks_far_apart, models=1, sizes=(40,), subsamples=3)
    row = summary["power"][0]
    assert row["power"] is not None and row["subsamples_needed"] is None and row["tasks_needed"] > 4
    assert any(note.startswith("power.subsamples_needed: ") for note in summary["notes"])


def test_processes_are_counted_where_a_system_cannot_tell_which_cores_are_ours(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert processes() == 3
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert processes() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert processes() == 2


def test_unreliable_fits_raise_an_alarm(report, monkeypatch, tmp_path):
    monkeypatch.setattr("lm_validity.studies.bias.statistics.model.MINIMUM_EFFECTIVE_NODES", 1e9)
    summary, _ = report(models=1, sizes=(40,))
    assert not any(row["reliable"] for row in summary["posterior"])
    assert json.loads((tmp_path / "bias" / "page.json").read_text())["findings"][0]["alarm"]
    assert any(note.startswith("UNRELIABLE FIT") for note in summary["notes"])


def test_names_are_escaped(report):
    def hostile(table):
        name = "<script>alert('x')</script>\"`"
        return table.assign(task=name + table["task"], language_model=name, experiment=name).drop_duplicates(
            ["task", "m", "n", "subsample", "arm"]
        )

    _, page = report(hostile, models=1, sizes=(40,))
    assert "<script>alert(" not in page


def test_nuts_without_its_packages_is_an_input_error(rows, tmp_path, monkeypatch):
    write_table(rows(models=1, tasks=2, sizes=(40,)), TRIALS, tmp_path / "trials.parquet")
    monkeypatch.setitem(sys.modules, "nutpie", None)
    with pytest.raises(InputError, match="needs a package") as caught:
        report_bias(tmp_path / "trials.parquet", tmp_path / "nuts", sampler="nuts")
    assert "bayes" in caught.value.hint


def test_the_command_line_imports_and_reports(tmp_path):
    from lm_validity.cli import register_commands

    lines = [f"e,lm,50,10,t{task},{s},0.{3 + s},0.{4 + s},0.{5 + s},0.5" for task in range(3) for s in range(3)]
    source = tmp_path / "accuracies.csv"
    source.write_text("experiment,lm,m,n,task,subsample,base,extra,test,majority\n" + "\n".join(lines))

    def run(*arguments):
        CliRunner().invoke(register_commands(), [str(argument) for argument in arguments], catch_exceptions=False)

    run("import", "pretrain-on-test", source, "--output", tmp_path / "in")
    run(
        "report",
        "bias",
        "--trials",
        tmp_path / "in" / "trials.parquet",
        "--output",
        tmp_path / "o",
        "--formula",
        "equations",
    )
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert summary["cells"][0]["bias_mean"] == pytest.approx(0.1)
    assert summary["cells"][0]["boost_mean"] == pytest.approx(0.1)
