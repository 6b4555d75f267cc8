"""The demo's agreement study over many worlds: is the effect there, and how much of it is by construction?

    python workflow/scripts/study_worlds.py --seeds 0-9                       # the demo's kind of world
    python workflow/scripts/study_worlds.py --seeds 0-4 --kinds control
    python workflow/scripts/study_worlds.py --table       # only rewrite docs/explanation/miniature_worlds.md

Each world is a run of its own, results/world-<kind>-<seed>/, in the layout that the Snakefile makes; stopped at any
point, the same command goes on. Two worlds side by side, a process each (--jobs). Not part of the tests: a world takes
some CPU-minutes.

Kinds: `families` (each family's pretraining saw question formats of its own), `control` (every family saw every
format).
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.runner import run_job
from lm_validity.cells.tasks.splits import prefetch_benchmark, write_splits
from lm_validity.cells.training.miniature import pretrain_model
from lm_validity.config.load import load_run
from lm_validity.config.sheets import read_pool
from lm_validity.files import write_json, write_text
from lm_validity.miniature.build import write_world
from lm_validity.run.workspace import Grid, Workspace
from lm_validity.studies.agreement.statistics.factors import principal_components
from lm_validity.studies.agreement.statistics.ranking import (
    improved_pairs,
    kendall_tau_matrix,
    mean_over_pairs,
    pair_signs,
)
from lm_validity.tables.merge import Merger

KINDS = {"families": {}, "control": {"formats": "control"}}
HEADER = """\
# The effect over many worlds

How much does train before test change the agreement of benchmarks in the miniature, and why? This page repeats the
demo's agreement study (8 of its 11 base models, 7 benchmarks, no perplexity corpora) in worlds of other seeds. They
have other entities and facts, other models and other fine-tunes. There are two kinds of worlds:

- `families`: each family's pretraining saw question formats of its own. It is built so that direct rankings disagree.
- `control`: every family saw every format.

*Tau* is Kendall's tau: 1 if two benchmarks rank the models alike, 0 if the rankings are unrelated. *PC1* is the share
of the variance that the first factor explains. There was one run per world, and nothing was tuned on these results.
`workflow/scripts/study_worlds.py` writes this page. Unrounded numbers are in
[miniature_worlds.csv](miniature_worlds.csv).

| world | seed | tau, direct | tau, train before test | change | PC1, direct | PC1, train before test | improved pairs |
|---|---|---|---|---|---|---|---|"""
FOLDER = Path("results/worlds")
MODELS, BENCHMARKS = FOLDER / "models.tsv", FOLDER / "benchmarks.tsv"
TABLE = Path("docs/explanation/miniature_worlds.md")
MEASURES = Path("docs/explanation/miniature_worlds.csv")


def configure(kind: str, seed: int) -> Path:
    """The world's configuration: the demo's agreement study with another world, without perplexity corpora."""
    values = yaml.safe_load(Path("config/config.yaml").read_text(encoding="utf-8"))
    name = f"world-{kind}-{seed}"
    values |= {"name": name, "studies": ["agreement"], "models": str(MODELS), "benchmarks": str(BENCHMARKS)}
    values["miniature"] = values["miniature"] | {"seed": seed} | KINDS[kind]
    path = FOLDER / f"{name}.yaml"
    write_text(path, yaml.safe_dump(values, sort_keys=False))
    return path


def write_sheets() -> None:
    """Eight of the demo's base models, final checkpoints only, and its benchmarks without perplexity corpora, for all
    worlds.

    They are those of config/sparse.yaml: the demo had no others when the worlds were measured. The tuned model stays
    out, since it saw formats in dialogues.
    """
    demo = yaml.safe_load(Path("config/sparse.yaml").read_text(encoding="utf-8"))
    models = pd.read_csv(demo["models"], sep="\t", dtype=str, keep_default_na=False)
    models = models[models.instruction_tuned.eq("0") & models.studies.str.contains("agreement")]
    write_text(MODELS, models.drop(columns="checkpoints").to_csv(sep="\t", index=False))
    sheet = pd.read_csv(demo["benchmarks"], sep="\t", dtype=str, keep_default_na=False)
    sheet = sheet[sheet.output_type.ne("loglikelihood_rolling")]
    write_text(BENCHMARKS, sheet.to_csv(sep="\t", index=False))


def compute(kind: str, seed: int) -> str:
    """Everything of one world up to its scores, in this process: the jobs that the Snakefile would start, one by one.

    A process a job would spend a third of a world's time on imports.
    """
    path = configure(kind, seed)
    run = load_run(path)
    if (run.results / "tables" / "scores.parquet").is_file():
        return f"{path.stem}: done before"
    world = run.results / "miniature"
    if not (world / "world.json").is_file():
        write_world(run.configuration.miniature, world)
    grid, pool = Grid(run), read_pool(run.configuration.miniature.pool)
    for model in grid.used_models:
        if not (world / "models" / model / "config.json").is_file():
            pretrain_model(run.configuration.miniature, world, pool[model], world / "models" / model)
        write_json(run.results / "prefetch" / "models" / f"{model}.json", prefetch_model(run.models[model]))
    for benchmark in grid.used_benchmarks:
        record = prefetch_benchmark(run.benchmarks[benchmark])
        write_json(run.results / "prefetch" / "benchmarks" / f"{benchmark}.json", record)
        write_splits(Workspace(run), benchmark)
    for job in grid.jobs.values():
        run_job(Workspace(run), job)
    Merger(run).write_scores(run.results / "tables")
    return f"{path.stem}: done"


def measure(kind: str, seed: int) -> dict | None:
    """Mean tau, PC1 share and improved pairs of a finished world; None where it is not finished."""
    path = Path("results") / f"world-{kind}-{seed}" / "tables" / "scores.parquet"
    if not path.is_file():
        return None
    scores = pd.read_parquet(path)
    sheet = pd.read_csv(BENCHMARKS, sep="\t").set_index("benchmark").metric
    sheet = sheet.map(lambda metric: metric if "," in metric else f"{metric},none")
    scores = scores[scores.selected & scores.split.eq("test") & scores.metric.eq(scores.benchmark.map(sheet))]
    row = {"kind": kind, "seed": seed}
    taus = {}
    for protocol, part in scores.groupby("protocol"):
        matrix = part.pivot(index="model", columns="benchmark", values="value").to_numpy()
        taus[protocol] = kendall_tau_matrix(pair_signs(matrix))
        row[f"tau_{protocol}"] = mean_over_pairs(taus[protocol])
        row[f"pc1_{protocol}"] = float(principal_components(matrix).explained_variance[0])
    row["improved"], row["pairs"] = improved_pairs(taus["direct"], taus["train_before_test"])
    return row


def write_tables(rows: list[dict]) -> None:
    """docs/explanation/miniature_worlds.csv with unrounded numbers, and the page with rounded ones."""
    frame = pd.DataFrame(rows)  # in the order of KINDS and seeds
    frame.to_csv(MEASURES, index=False)
    lines = [HEADER]
    for row in frame.itertuples():
        lines.append(
            f"| {row.kind} | {row.seed} | {row.tau_direct:.3f} | {row.tau_train_before_test:.3f} | "
            f"{row.tau_train_before_test - row.tau_direct:+.3f} | {row.pc1_direct:.3f} | "
            f"{row.pc1_train_before_test:.3f} | {row.improved} of {row.pairs} |"
        )
    for kind, part in frame.groupby("kind", sort=False):
        lines += ["", summarize(kind, part)]
    write_text(TABLE, "\n".join(lines) + "\n")


def summarize(kind: str, part: pd.DataFrame) -> str:
    """Mean difference with a 95% t interval over worlds, and in how many it is positive."""
    from scipy import stats

    difference = (part.tau_train_before_test - part.tau_direct).to_numpy()
    positive = f"positive in {(difference > 0).sum()} of {len(difference)} worlds"
    if len(difference) < 2:
        return f"**{kind}**: difference {difference[0]:+.3f} in one world."
    half = stats.t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / np.sqrt(len(difference))
    return (
        f"**{kind}**: mean difference {difference.mean():+.3f} (95% t interval over worlds "
        f"{difference.mean() - half:+.3f} to {difference.mean() + half:+.3f}), {positive}. Mean tau "
        f"{part.tau_direct.mean():.3f} → {part.tau_train_before_test.mean():.3f}, mean PC1 share "
        f"{part.pc1_direct.mean():.3f} → {part.pc1_train_before_test.mean():.3f}."
    )


def read_seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=read_seeds, default=read_seeds("0-9"), help="e.g. 0-9")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["families"])
    parser.add_argument("--jobs", type=int, default=2, help="worlds side by side")
    parser.add_argument("--table", action="store_true", help="compute nothing, only rewrite the tables")
    arguments = parser.parse_args()
    if not arguments.table:
        write_sheets()
        worlds = [(kind, seed) for kind in arguments.kinds for seed in arguments.seeds]
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for future in as_completed([pool.submit(compute, *world) for world in worlds]):
                print(future.result(), flush=True)
    finished = (measure(kind, seed) for kind in KINDS for seed in range(100))
    rows = [row for row in finished if row is not None]
    if rows:
        write_tables(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
