"""The demo's agreement study over many worlds: is the effect there, and how much of it is by construction?

    python workflow/scripts/study_worlds.py --seeds 0-9                       # the demo's kind of world
    python workflow/scripts/study_worlds.py --seeds 0-4 --kinds control disjoint
    python workflow/scripts/study_worlds.py --table                           # only rewrite docs/miniature_worlds.md

Each world is a run of its own, results/world-<kind>-<seed>/, through the same Snakefile; stopped at any point, the
same command goes on. Two worlds side by side, one job each (--jobs). Not part of the tests: a world takes some
CPU-minutes.

Kinds: `families` (each family's pretraining saw question formats of its own), `control` (every family saw every
format), `disjoint` (no test fact is asked by two benchmarks).
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from lm_validity.files import write_text
from lm_validity.statistics.agreement import improved_pairs, mean_over_pairs
from lm_validity.statistics.factors import principal_components
from lm_validity.statistics.ranking import kendall_tau_matrix, pair_signs

KINDS = {
    "families": {},
    "control": {"formats": "control"},
    "disjoint": {"test_facts": "disjoint"},
}
FOLDER = Path("results/worlds")
BENCHMARKS = FOLDER / "benchmarks.tsv"
TABLE = Path("docs/miniature_worlds.md")
MEASURES = Path("docs/miniature_worlds.csv")


def configure(kind: str, seed: int) -> Path:
    """The world's configuration: the demo's agreement study with another world, without perplexity corpora."""
    values = yaml.safe_load(Path("config/config.yaml").read_text(encoding="utf-8"))
    name = f"world-{kind}-{seed}"
    values |= {"name": name, "studies": ["agreement"], "benchmarks": str(BENCHMARKS)}
    values["miniature"] = values["miniature"] | {"seed": seed} | KINDS[kind]
    path = FOLDER / f"{name}.yaml"
    write_text(path, yaml.safe_dump(values, sort_keys=False))
    return path


def write_benchmarks() -> None:
    """The demo's benchmarks without perplexity corpora, for all worlds."""
    demo = yaml.safe_load(Path("config/config.yaml").read_text(encoding="utf-8"))
    sheet = pd.read_csv(demo["benchmarks"], sep="\t", dtype=str, keep_default_na=False)
    sheet = sheet[sheet.output_type.ne("loglikelihood_rolling")]
    write_text(BENCHMARKS, sheet.to_csv(sep="\t", index=False))


def compute(kind: str, seed: int) -> int:
    """Run one world up to its tables in a Snakemake of its own; its exit code."""
    path = configure(kind, seed)
    command = ["snakemake", f"results/{path.stem}/tables/scores.parquet", "--configfile", str(path)]
    # each world has its own working files below results/, so runs side by side need no lock between them
    command += ["--cores", "1", "--nolock", "--keep-going", "--rerun-incomplete", "--quiet", "all"]
    with open(path.with_suffix(".log"), "a", encoding="utf-8") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    print(f"{path.stem}: {'done' if code == 0 else f'exit {code}, see ' + str(path.with_suffix('.log'))}", flush=True)
    return code


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
    """docs/miniature_worlds.csv with unrounded numbers, and the page with rounded ones."""
    frame = pd.DataFrame(rows)  # in the order of KINDS and seeds
    frame.to_csv(MEASURES, index=False)
    lines = ["# The effect over many worlds", "", *__doc__.split("\n\n")[0].splitlines(), ""]
    lines += [
        "| world | seed | tau direct | tau TBT | difference | PC1 direct | PC1 TBT | improved pairs |",
        "|---|---|---|---|---|---|---|---|",
    ]
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
        f"{difference.mean() - half:+.3f} to {difference.mean() + half:+.3f}), {positive}; mean tau "
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
    codes = []
    if not arguments.table:
        write_benchmarks()
        worlds = [(kind, seed) for kind in arguments.kinds for seed in arguments.seeds]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            codes = list(pool.map(lambda world: compute(*world), worlds))
    finished = (measure(kind, seed) for kind in KINDS for seed in range(100))
    rows = [row for row in finished if row is not None]
    if rows:
        write_tables(rows)
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
