"""Cost of the signal study's item bootstrap and of its whole report, on generated items.

    python benchmarks/signal_scoring.py --output FILE [--items 15000] [--checkpoints 60] [--resamples 1000]

Six models x 60 checkpoints x 15,000 items of four choices are written to a temporary items table. Two records: the
bootstrap of one score against the straightforward loop (index the items, average, score each curve with numpy as the
competition's notebook does), on the same draws; and the whole report from the files (24 item scores with intervals,
filters with held-out trials and controls, figures) against its limit of 120 s on two cores, with peak memory.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import write_records

from lm_validity.studies.signal.report import report_signal
from lm_validity.studies.signal.statistics.items import item_scores
from lm_validity.studies.signal.statistics.quality import signal_quality
from lm_validity.studies.signal.statistics.resampling import draw_items, resample_item_means
from lm_validity.tables.items import read_benchmark_items
from lm_validity.tables.schema import ITEMS, SCORES, write_table

MODELS = [(f"{size}-{shape}", size, shape) for size in ("500m", "1b", "3b") for shape in ("deep", "wide")]
CHOICES = 4
LOOP_RESAMPLES = 3  # of the slow loop; times are per resample
REPEATS = 5
LIMIT_S = 120.0
LIMIT_GB = 4.0


def write_items(path: Path, checkpoints: int, items: int) -> None:
    """Items whose gold answers rise with training, one row group a cell."""
    rng = np.random.default_rng(0)
    characters = rng.integers(3, 60, (items, CHOICES))
    gold = rng.integers(CHOICES, size=items)
    difficulty = rng.normal(-20.0, 5.0, (items, CHOICES))
    offsets = np.arange(0, items * CHOICES + 1, CHOICES, dtype=np.int32)

    def lists(values: np.ndarray) -> pa.ListArray:
        return pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))

    with pq.ParquetWriter(path, ITEMS, compression="zstd") as writer:
        for model, _, _ in MODELS:
            for step in range(1, checkpoints + 1):
                scores = difficulty + rng.normal(0.0, 1.0, (items, CHOICES))
                scores[np.arange(items), gold] += step / checkpoints
                cell = {
                    "model": model,
                    "checkpoint": f"step-{step}",
                    "iteration": 1000 * step,
                    "tokens_b": 4.0 * step,
                    "benchmark": "generated",
                    "protocol": "direct",
                    "prompt": "plain",
                    "split": "test",
                }
                columns = {name: pa.array([value] * items, ITEMS.field(name).type) for name, value in cell.items()}
                columns |= {
                    "doc_id": pa.array([f"test:{item}" for item in range(items)]),
                    "subject": pa.array([f"subject {item % 20}" for item in range(items)]),
                    "gold": pa.array(gold),
                    "correct": pa.array((scores.argmax(axis=1) == gold).astype(float)),
                    "choice_loglikelihoods": lists(scores),
                    "choice_tokens": lists(np.maximum(1, characters // 4)),
                    "choice_characters": lists(characters),
                    "choice_bytes": lists(characters),
                }
                arrays = [columns.get(field.name, pa.nulls(items, field.type)) for field in ITEMS]
                writer.write_table(pa.table(arrays, schema=ITEMS))


def write_sheets(folder: Path) -> None:
    """The scores table that belongs to the items, and the models sheet."""
    answers = read_benchmark_items(folder / "items.parquet", "generated")
    rows = [
        {
            "model": model.model,
            "checkpoint": checkpoint,
            "iteration": int(iteration),
            "tokens_b": tokens_b,
            "benchmark": "generated",
            "protocol": "direct",
            "split": "test",
            "metric": "acc,none",
            "value": value,
            "higher_is_better": True,
        }
        for model in answers.models
        for checkpoint, iteration, tokens_b, value in zip(
            model.checkpoints, model.iterations, model.tokens_b, model.correct.mean(axis=1), strict=True
        )
    ]
    write_table(pd.DataFrame(rows), SCORES, folder / "scores.parquet")
    sheet = pd.DataFrame(MODELS, columns=["model", "size", "architecture"]).assign(training_data="science")
    sheet.to_csv(folder / "models.csv", index=False)


def notebook_quality(curve: np.ndarray) -> float:
    """Signal quality of one curve as the competition's notebook computes it, lag by lag with numpy."""
    n = len(curve)
    ranks = np.argsort(np.argsort(curve, kind="stable"))
    monotonicity = max(0.0, 1 - 6 * np.sum((np.arange(n) - ranks) ** 2) / (n * (n**2 - 1)))
    lags = [abs(np.corrcoef(curve[lag:], curve[:-lag])[0, 1]) for lag in range(1, n // 4)]
    return 0.5 * monotonicity + 0.5 * float(np.mean(lags))


def bootstrap_record(path: Path, resamples: int) -> dict:
    """The bootstrap of the confidence margin: matrix product and batched scores against the loop."""
    answers = read_benchmark_items(path, "generated")
    scores = [item_scores("confidence_margin", model.loglikelihoods, answers.gold) for model in answers.models]
    stacked = np.concatenate(scores)
    checkpoints, items = scores[0].shape
    ours, loop, difference = [], [], 0.0
    for repeat in range(REPEATS):
        started = time.perf_counter()
        means = resample_item_means(stacked, draw_items(items, resamples, np.random.default_rng(repeat)))
        quality = signal_quality(means.reshape(resamples, len(scores), checkpoints)).signal_quality
        ours.append((time.perf_counter() - started) / resamples)

        # The same draws: one call of integers for a batch fills its rows in order
        drawn = np.random.default_rng(repeat).integers(items, size=(min(100, resamples), items))[:LOOP_RESAMPLES]
        started = time.perf_counter()
        slow = np.array([[notebook_quality(each[:, rows].mean(axis=1)) for each in scores] for rows in drawn])
        loop.append((time.perf_counter() - started) / len(drawn))
        difference = max(difference, float(np.abs(slow - quality[: len(drawn)]).max()))
    ratios = np.array(loop) / np.array(ours)
    return {
        "name": "signal study: item bootstrap of signal quality",
        "baseline": "numpy loop over resamples and curves, scored as the competition's notebook does",
        "ratio": float(np.median(ratios)),
        "ratio_low": float(ratios.min()),
        "ratio_high": float(ratios.max()),
        "target": None,
        "unit": "seconds per resample of all curves",
        "agreement": difference,
        "device": "cpu",
        "detail": f"{len(scores)} models x {checkpoints} checkpoints x {items} items, {resamples} resamples: "
        f"{np.median(ours) * resamples:.1f} s; loop {np.median(loop):.3f} s a resample",
    }


def report_record(folder: Path, resamples: int) -> dict:
    """The whole report from the files."""
    started = time.perf_counter()
    report_signal(
        folder / "scores.parquet",
        folder / "models.csv",
        folder / "report",
        items=folder / "items.parquet",
        resamples=resamples,
    )
    seconds = time.perf_counter() - started
    # Linux counts kilobytes; the highest of this process so far, the generation of items included
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "name": "signal study: whole report",
        "baseline": f"limit of {LIMIT_S:g} s and {LIMIT_GB:g} GB",
        "ratio": LIMIT_S / seconds,
        "ratio_low": LIMIT_S / seconds,
        "ratio_high": LIMIT_S / seconds,
        "target": 1.0,
        "unit": "seconds",
        "agreement": None,
        "device": "cpu",
        "detail": f"{seconds:.1f} s, peak {peak_gb:.2f} GB, {resamples} resamples of every score",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--items", type=int, default=15_000)
    parser.add_argument("--checkpoints", type=int, default=60)
    parser.add_argument("--resamples", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_items(folder / "items.parquet", arguments.checkpoints, arguments.items)
        write_sheets(folder)
        report = report_record(folder, arguments.resamples)
        records = [bootstrap_record(folder / "items.parquet", arguments.resamples), report]
    for record in records:
        print(f"{record['name']}: {record['ratio']:.1f} x ({record['detail']})", flush=True)
    write_records(arguments.output, records)


if __name__ == "__main__":
    main()
