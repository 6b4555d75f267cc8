"""The page of the signal report before its folds, and its answers for a site's first page, in many worlds."""

import numpy as np
import pytest
from signal_world import write_scores

from lm_validity.config.sections import Reports
from lm_validity.pages.page import page_document
from lm_validity.studies.signal.numbers import signal_rows
from lm_validity.studies.signal.report import analyze_signal, settling, signal_page
from lm_validity.tables.counted import Sources

LONG = "a_benchmark_with_a_name_of_" + "eighty_letters_" * 4
NAMES = ["facts", "flat", "שפה", LONG]


def page_of(folder, models=4, checkpoints=12, names=NAMES, resamples=60, tokens_b=10.0, stderr=0.01, fall=False,
            later=0.0, lower_is_better=(), value=None):  # fmt: skip
    """The page and the rows of a world in which all benchmarks but `flat` rise, or fall from 3 where lower is better;
    models differ in level, and each begins `later` billion tokens after the one before."""
    rng = np.random.default_rng(0)

    def usual(name, i, step):
        slope = (name != "flat") * (0.4 + 0.1 * min(i, 3)) * (-0.5 if fall or name in lower_is_better else 1)
        return 0.25 + 2.75 * (name in lower_is_better) + 0.002 * rng.standard_normal() + slope * step / checkpoints

    rows = [
        {"model": f"m{i}", "checkpoint": f"step{step}", "iteration": 1000 * step,
         "tokens_b": tokens_b * step + later * i, "benchmark": name, "protocol": "direct", "metric": "acc,none",
         "stderr": stderr, "n_items": 2000, "value": (value or usual)(name, i, step)}
        for name in names for i in range(models) for step in range(1, checkpoints + 1)
    ]  # fmt: skip
    sheet = "model,size,architecture\n" + "".join(f"m{i},{i // 2}b,a{i % 2}\n" for i in range(models))
    listed = "benchmark,metric,chance,higher_is_better\n"
    listed += "".join(f"{name},acc,0.25,{0 if name in lower_is_better else 1}\n" for name in names)
    files = write_scores(folder, rows, listed, sheet)
    section = Reports(resamples=resamples)
    data = analyze_signal(Sources(files.scores, files.models, folder / "benchmarks.csv"), section)
    found = signal_rows(data)
    return page_document(signal_page(data, found)), found


def test_ready_is_the_later_of_above_chance_and_settled_before_the_last_common_point(tmp_path):
    _, rows = page_of(tmp_path)
    for row in rows.all("ready_by"):
        start, settled = (rows.row(name, subject=row.subject) for name in ("above_chance_from_mean", "settled_from"))
        last = max(point.value for point in rows.all("point_tokens", subject=row.subject))
        known = start.value is not None and settled.high is not None
        by = max(start.value, settled.high) if known else None
        assert row.value == (by if known and by < last else None)
        assert (rows.value("ready", subject=row.subject) == 1) == (row.value is not None)
    by = [row.value for row in rows.all("ready_by") if row.value is not None]
    assert by and by == sorted(by)  # the earliest first
    # at chance: not shown, which is no "no"
    assert rows.row("ready", subject="flat").value is None and "No model" in rows.row("ready", subject="flat").reason


@pytest.mark.parametrize(
    ("gaps", "interval", "surely"),
    [
        ([-0.001, *[0.001] * 10, 0.1], (10.0, 120.0), 0),  # any point of training
        ([-0.001, *[0.1] * 11], (10.0, 20.0), 1),
        ([0.1] * 12, (10.0, 10.0), 1),
        ([-0.1, -0.001, *[0.1] * 10], (20.0, 30.0), 1),
    ],
)
def test_an_order_is_settled_before_the_end_where_its_interval_ends_there(tmp_path, gaps, interval, surely):
    page, rows = page_of(tmp_path, models=2, names=["facts"], resamples=0,
                         value=lambda name, i, step: 0.5 + i * gaps[step - 1])  # fmt: skip
    quantity, (row,) = settling(rows)
    assert (quantity, (row.low, row.high)) == ("settled_from", interval)
    sentence = next(one["sentence"] for one in page["findings"] if "settled" in one["sentence"])
    assert (
        sentence.startswith(f"On {surely} of 1 benchmark") and (f"by {interval[1]:.0f} billion" in sentence) == surely
    )
