"""The rows of the reports on published tables and on small worlds, on record: `rows/<study>.json`.

    python tests/golden/rows.py --renew STUDY ...            write the records of these studies anew
    python tests/golden/rows.py --write FOLDER [STUDY ...]   keep the rows of every world, to compare two trees

A record keeps of each world and quantity how many rows there are, and the sums of their values and of the ends of
their intervals, each row weighed by a number that is drawn from its place: two rows that changed places are seen.
Where a change is meant, look at the rows themselves before renewing.
"""

import argparse
import hashlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RECORDS = Path(__file__).with_name("rows")
PLACE = ("quantity", "subject", "other", "protocol", "conditions", "interval_for", "unit", "reason_code")
DIRECT, TRAINED = "direct", "train_before_test"
FEW, GROUP = ("--resamples", "40"), ("--group", "instruction_tuned")


# ----------------------------------------------------------------------------------------------------------------------
# Small worlds: tables of scores, answers and trials, from a seed of their own.


def scores(models: int = 9, benchmarks: int = 5, protocols: Iterable[str] = (DIRECT, TRAINED)) -> pd.DataFrame:
    """Scores of models along one factor, with noise of 400 items and one corpus whose bits per byte fall."""
    rng = np.random.default_rng([models, benchmarks])
    skill, slope = np.sort(rng.normal(size=models)), rng.uniform(0.5, 1.5, benchmarks)
    rows = []
    for protocol in protocols:
        noise = 0.5 if protocol == DIRECT else 0.2
        logits = skill[:, None] * slope + noise * rng.normal(size=(models, benchmarks))
        values = np.round(400 / (1 + np.exp(-logits))) / 400
        for model in range(models):
            for benchmark in range(benchmarks):
                value = values[model, benchmark]
                error = math.sqrt(max(value * (1 - value), 1e-4) / 399)
                rows.append((f"m{model}", f"b{benchmark}", protocol, "acc,none", value, error, 400, True))
            bits = 1.2 - 0.05 * skill[model] + 0.01 * rng.normal()
            rows.append((f"m{model}", "corpus", protocol, "bits_per_byte,none", bits, None, 50, False))
    names = ["model", "benchmark", "protocol", "metric", "value", "stderr", "n_items", "higher_is_better"]
    table = pd.DataFrame(rows, columns=names)
    table["seed"] = pd.array(np.where(table["protocol"] == TRAINED, 0, np.nan), "Int64")
    return table.assign(checkpoint="final", prompt="plain", split="test", selected=True, source="golden")


def models_sheet(table: pd.DataFrame) -> pd.DataFrame:
    """Families of three models that differ in size; every third is instruction-tuned."""
    names = table["model"].drop_duplicates().tolist()
    sheet = pd.DataFrame({"model": names, "family": [f"family{index // 3}" for index in range(len(names))]})
    sheet["parameters_b"] = [0.5 * 2 ** (index % 5) for index in range(len(names))]
    sheet["tokens_b"] = [300.0 + 100 * (index % 4) for index in range(len(names))]
    return sheet.assign(instruction_tuned=[int(index % 3 == 2) for index in range(len(names))])


def benchmarks_sheet(table: pd.DataFrame) -> pd.DataFrame:
    """Two categories of multiple choice, and the corpus."""
    names = table["benchmark"].drop_duplicates().tolist()
    corpus = [name == "corpus" for name in names]
    kinds = ["loglikelihood_rolling" if each else "multiple_choice" for each in corpus]
    category = ["language" if each else f"kind{index % 2}" for index, each in enumerate(corpus)]
    metric = ["bits_per_byte" if each else "acc" for each in corpus]
    better = [int(not each) for each in corpus]
    columns = {"benchmark": names, "category": category, "metric": metric, "output_type": kinds}
    return pd.DataFrame(columns | {"higher_is_better": better})


def seeds_and_prompts() -> pd.DataFrame:
    """Three fine-tuning seeds of every cell, and another prompt whose scores do not count."""
    table, rng = scores(7, 4), np.random.default_rng(1)
    parts = []
    for prompt in ("plain", "chat"):
        for seed in range(3):
            part = table[table["protocol"].eq(TRAINED) | (seed == 0)].assign(prompt=prompt, selected=prompt == "plain")
            part["seed"] = part["seed"] + seed
            parts.append(part.assign(value=part["value"] + 0.01 * rng.normal(size=len(part))))
    return pd.concat(parts)


def holes() -> pd.DataFrame:
    """A quarter of the cells is missing."""
    table = scores(12, 6)
    return table[np.random.default_rng(2).random(len(table)) > 0.25]


def curves() -> pd.DataFrame:
    """Twelve checkpoints of four models."""
    rng, rows = np.random.default_rng(3), []
    for model in range(4):
        for benchmark in range(3):
            for step in range(1, 13):
                rise = 0.25 + 0.1 * (model + 1) * (benchmark + 1) / 3 * (1 - math.exp(-step / 4))
                value = rise + 0.01 * rng.normal()
                rows.append((f"m{model}", f"step{step}", 1000 * step, 2.0 * step, f"b{benchmark}", value))
    table = pd.DataFrame(rows, columns=["model", "checkpoint", "iteration", "tokens_b", "benchmark", "value"])
    constant = {"protocol": DIRECT, "prompt": "plain", "split": "test", "metric": "acc,none", "stderr": 0.02}
    return table.assign(**constant, n_items=400, higher_is_better=True, selected=True, source="golden")


def answers(runs: int = 1) -> pd.DataFrame:
    """Answers of four models to 120 items of two benchmarks, sampled `runs` times."""
    rng, rows = np.random.default_rng(4), []
    for benchmark in range(2):
        hard = rng.normal(size=120)
        for model in range(4):
            for run in range(runs):
                right = rng.random(120) < 1 / (1 + np.exp(hard - 0.4 * model))
                for item in range(120):
                    label = run if runs > 1 else None
                    rows.append((f"m{model}", f"b{benchmark}", label, f"{item}", f"s{item % 3}", float(right[item])))
    names = ["model", "benchmark", "run", "doc_id", "subject", "correct"]
    table = pd.DataFrame(rows, columns=names).astype({"run": "Int64"})
    return table.assign(checkpoint="final", protocol=DIRECT, prompt="plain", split="test")


def scores_of(table: pd.DataFrame) -> pd.DataFrame:
    """The score of each model, benchmark and run of a table of answers."""
    keys = ["model", "benchmark", "run", "checkpoint", "protocol", "prompt", "split"]
    groups = table.groupby(keys, dropna=False)["correct"]
    frame = pd.DataFrame({"value": groups.mean(), "stderr": groups.sem(), "n_items": groups.size()}).reset_index()
    return frame.assign(metric="acc,none", higher_is_better=True, selected=True, source="golden")


def trials(experiments: int = 1) -> pd.DataFrame:
    """Eight subsamples of three tasks, two language models and two sizes, with a bias of three points."""
    rng, rows = np.random.default_rng(5), []
    for experiment in range(experiments):
        for task in range(3):
            for n in (50, 100):
                for subsample in range(8):
                    for model in ("bert", "gpt"):
                        for arm, rise in (("base", 0.0), ("extra", 0.03), ("test", 0.06 - 0.04 * experiment)):
                            right = rng.binomial(n, 0.6 + 0.1 * task + rise)
                            rows.append((f"e{experiment}", model, f"t{task}", 50, n, subsample, arm, right, n))
    names = ["experiment", "language_model", "task", "m", "n", "subsample", "arm", "correct", "total"]
    return pd.DataFrame(rows, columns=names)


# ----------------------------------------------------------------------------------------------------------------------
# What is run: world -> study -> the arguments of `lm-validity report`, on files that are written into a folder.

Arguments = list[list[str]]


def tables(
    table: pd.DataFrame, names: Iterable[str] = ("agreement", "factors", "readiness", "screening", "models"), **sheets
):
    """A world of scores with both sheets, or those given, for these reports."""

    def made(folder: Path) -> dict[str, Arguments]:
        models = sheets.get("models", models_sheet(table))
        given = write(folder, scores=table, models=models, benchmarks=benchmarks_sheet(table))
        if "plan" in sheets:
            sheets["plan"].to_csv(folder / "plan.tsv", sep="\t", index=False)
            given += ["--plan", f"{folder}/plan.tsv"]
        options = {"agreement": FEW, "factors": FEW, "readiness": GROUP}
        return {name: [["report", name, *given, *options.get(name, ())]] for name in names}

    return made


def write(folder: Path, **frames: pd.DataFrame) -> list[str]:
    """Write tables and sheets, and name them as options."""
    from lm_validity.tables.schema import ITEMS, SCORES, TRIALS, write_table

    kinds = {"scores": SCORES, "items": ITEMS, "trials": TRIALS}
    for name, frame in frames.items():
        if name in kinds:
            write_table(frame, kinds[name], folder / f"{name}.parquet")
        else:
            frame.to_csv(folder / f"{name}.csv", index=False)
    suffix = {name: "parquet" if name in kinds else "csv" for name in frames}
    return [word for name in frames for word in (f"--{name}", f"{folder}/{name}.{suffix[name]}")]


def with_answers(runs: int):
    """A world of answers: the items report, and a site with its comparisons and its ranking."""

    def made(folder: Path) -> dict[str, Arguments]:
        table = answers(runs)
        given = write(folder, scores=scores_of(table), items=table)
        return {"items": [["report", "items", *given]], "compare": [["compare", "m0", "m3", *given, "--at", "final"]]}

    return made


def of_curves(folder: Path) -> dict[str, Arguments]:
    table = curves()
    return {"signal": [["report", "signal", *write(folder, scores=table, models=models_sheet(table)), *FEW]]}


def of_trials(experiments: int):
    def made(folder: Path) -> dict[str, Arguments]:
        return {"bias": [["report", "bias", *write(folder, trials=trials(experiments))]]}

    return made


def planned(folder: Path) -> dict[str, Arguments]:
    """Less than half of the fine-tunes: every third cell and a block of four models, some of them for the audit."""
    table = scores(15, 8)
    model = table["model"].str[1:].astype(int)
    number = pd.to_numeric(table["benchmark"].str[1:], errors="coerce").fillna(8).astype(int)
    kept = ((model + number) % 3 == 0) | (model < 4)
    cells = table.loc[kept & table["protocol"].eq(TRAINED), ["model", "benchmark"]].drop_duplicates()
    return tables(table[kept | table["protocol"].eq(DIRECT)], ("agreement", "factors"), plan=cells)(folder)


def published(folder: Path) -> dict[str, Arguments]:
    """The reports on the papers' own tables."""
    harmony, early, trial = (EXAMPLES / name for name in ("published", "early_training", "pretrain_on_test"))
    sheets = ["--models", f"{harmony}/models.csv", "--benchmarks", f"{harmony}/benchmarks.csv"]
    of_harmony = ["import", "lm-harmony", f"{harmony}/scores.json", "--output", f"{folder}/harmony"]
    given = ["--scores", f"{folder}/harmony/scores.parquet", *sheets]
    curve = ["--scores", f"{folder}/curves/scores.parquet", "--models", f"{early}/models.csv", "--selection", "e2lm"]
    made = {name: [of_harmony, ["report", name, *given, *FEW]] for name in ("agreement", "factors")}
    made["readiness"] = [of_harmony, ["report", "readiness", *given, *GROUP]]
    made |= {name: [of_harmony, ["report", name, *given]] for name in ("screening", "models")}
    return made | {
        "signal": [
            ["import", "e2lm", f"{early}/curves.csv", "--output", f"{folder}/curves"],
            ["report", "signal", *curve, *FEW],
        ],
        "bias": [
            ["import", "pretrain-on-test", f"{trial}/accuracies.csv.gz", "--output", f"{folder}/trials"],
            ["report", "bias", "--trials", f"{folder}/trials/trials.parquet", "--formula", "equations"],
        ],
    }


WORLDS: Mapping[str, Callable[[Path], dict[str, Arguments]]] = {
    "published": published,
    "complete": tables(scores()),
    "holes": tables(holes()),
    "one_protocol": tables(scores(8, 4, [DIRECT]), ("agreement", "factors")),
    "no_families": tables(
        scores(8, 4), ("agreement", "factors"), models=pd.DataFrame({"model": [f"m{index}" for index in range(8)]})
    ),
    "seeds_and_prompts": tables(seeds_and_prompts(), ("agreement", "factors")),
    "no_errors": tables(scores(6, 4).assign(stderr=None, n_items=None)),
    "three_models": tables(scores(3, 3), ("agreement", "factors", "screening")),
    "planned": planned,
    "answers": with_answers(1),
    "runs": with_answers(4),
    "curves": of_curves,
    "trials": of_trials(1),
    "two_experiments": of_trials(2),
}
STUDIES = ("agreement", "factors", "readiness", "screening", "models", "signal", "bias", "items", "compare")


def rows_of(study: str, world: str) -> pd.DataFrame | None:
    """The rows of a report on a world, made now by the command; None where the world has no such report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = WORLDS[world](folder).get(study)
        if commands is None:
            return None
        for arguments in commands:
            output = [] if "--output" in arguments else ["--output", f"{folder}/made"]
            program = [sys.executable, "-m", "lm_validity", *arguments, *output]
            done = subprocess.run(program, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(program)}: {done.stderr[-2000:]}")
        return pd.read_parquet(folder / "made" / "results.parquet")


def record_of(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Quantity -> how many rows, and the weighed sums of value, low and high."""
    place = rows[list(PLACE)].astype(object).where(rows[list(PLACE)].notna(), None)
    texts = (json.dumps(list(each), ensure_ascii=False) for each in place.itertuples(index=False, name=None))
    weights = np.array([int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32 + 0.5 for text in texts])
    weighed = rows[["value", "low", "high"]].astype(float).fillna(0).mul(weights, axis=0)
    # so that a place is seen whose numbers are all missing
    weighed["place"] = weights
    sums = weighed.groupby(rows["quantity"]).sum()
    sizes = rows.groupby("quantity").size()
    return {name: [int(sizes[name]), *(float(f"{value:.10g}") for value in sums.loc[name])] for name in sizes.index}


def worlds_of(study: str) -> list[str]:
    """The worlds that have a report of this study."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for name, made in WORLDS.items():
            (Path(folder) / name).mkdir()
            found += [name] if study in made(Path(folder) / name) else []
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--renew", action="store_true", help="write the records of these studies anew")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep the rows of every world here")
    arguments = parser.parse_args()
    for study in arguments.studies or STUDIES:
        found = {world: rows for world in worlds_of(study) if (rows := rows_of(study, world)) is not None}
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)
            for world, rows in found.items():
                rows.to_parquet(arguments.write / f"{study}.{world}.parquet")
        if arguments.renew:
            RECORDS.mkdir(exist_ok=True)
            lines = [
                f'"{world}": {{\n' + ",\n".join(f'"{q}": {json.dumps(v)}' for q, v in record_of(rows).items()) + "\n}"
                for world, rows in found.items()
            ]
            (RECORDS / f"{study}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
