"""Sections of the agreement report on fine-tuning: how much of each model was trained, and for instruction-tuned models
which prompt was chosen on validation, and with what."""

from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.sheets import metric_key
from lm_validity.pages import figures
from lm_validity.pages.page import Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, TRAINED
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.tables.schema import SCORES, SELECTIONS, read_table
from lm_validity.words import UNDER, count

PROMPTS = ("plain", "chat")
COLUMNS = ("model", "benchmark", "protocol", "seed", *PROMPTS, "chosen", "learning_rate", "epoch", "test")
LEAST_MODELS = 3  # with both prompts, for the variance between them
UNEQUAL = 1.5  # times as large a share of the weights adapted: said as a caution
UNTOUCHED = "none (direct)"  # no adapter was better on validation


def prompt_choices(scores: str | Path, selections: str | Path | None, matrix: ScoreMatrix) -> pd.DataFrame:
    """One row per (model, benchmark, protocol, seed) that had two prompts to choose from, with COLUMNS.

    `plain` and `chat`: validation scores under each prompt, of its best fine-tune where there are some (NaN where none
    counts); `test`: the score that the other figures use. Without `selections` the direct protocol only.
    """
    tables = [_direct_choices(read_table(scores, SCORES), matrix)]
    if selections is not None and len(tables[0]):
        asked = set(zip(tables[0]["model"], tables[0]["benchmark"], strict=True))
        tables.append(_prepared_choices(read_table(selections, SELECTIONS), asked, matrix))
    frame = pd.concat(tables, ignore_index=True).reindex(columns=list(COLUMNS))
    places = {name: i for i, name in enumerate(matrix.models)}, {name: j for j, name in enumerate(matrix.benchmarks)}
    known = frame["model"].isin(places[0]) & frame["benchmark"].isin(places[1])
    frame = frame[known].reset_index(drop=True)
    frame["test"] = [
        matrix.value[row.protocol][places[0][row.model], places[1][row.benchmark]] for row in frame.itertuples()
    ]
    return frame


def _direct_choices(rows: pd.DataFrame, matrix: ScoreMatrix) -> pd.DataFrame:
    """Validation scores of the untouched models that were scored under both prompts, at the checkpoint that counts.

    `chosen`: the prompt of the selected row; where none is selected or several are, that of the score on test.
    """
    key = ["model", "benchmark"]
    scored = matrix.selected[matrix.selected["protocol"] == DIRECT].drop_duplicates(key).set_index(key)
    rows = rows[(rows["protocol"] == DIRECT) & (rows["split"] == "validation")]
    rows = rows[_of_the_metric(rows, matrix)].set_index(key)
    checkpoint = scored["checkpoint"].fillna("final").reindex(rows.index)
    rows = rows[(rows["checkpoint"].fillna("final") == checkpoint).to_numpy(dtype=bool)]
    values = rows.pivot_table(index=key, columns="prompt", values="value", aggfunc="first")
    values = values.reindex(columns=list(PROMPTS)).dropna()
    chosen = rows.loc[rows["selected"].fillna(value=False).to_numpy(dtype=bool), "prompt"]
    chosen = chosen[~chosen.index.duplicated(keep=False)].reindex(values.index)
    frame = values.assign(chosen=chosen.fillna(scored["prompt"].reindex(values.index))).reset_index()
    return frame.assign(protocol=DIRECT, learning_rate="", epoch=np.nan)


def _of_the_metric(rows: pd.DataFrame, matrix: ScoreMatrix) -> np.ndarray:
    """(rows,) True for each benchmark's metric, as the test scores are read: a null one counts as that metric."""
    wanted = rows["benchmark"].map(matrix.benchmark_facts.set_index("benchmark")["metric"])
    given = rows["metric"].map(metric_key, na_action="ignore")
    return (wanted.isna() | given.isna() | (given == wanted)).to_numpy(dtype=bool)


def _prepared_choices(selections: pd.DataFrame, asked: set[tuple[str, str]], matrix: ScoreMatrix) -> pd.DataFrame:
    """The best fine-tune under each prompt, and what was selected."""
    better = dict(zip(matrix.benchmarks, matrix.direction, strict=True))
    found = []
    for (model, benchmark, seed), group in selections.groupby(["model", "benchmark", "seed"], sort=False):
        if (model, benchmark) not in asked or benchmark not in better:
            continue
        tuned = group[group["learning_rate"].notna() & ~group["diverged"].fillna(value=False)]
        row = {"model": model, "benchmark": benchmark, "protocol": TRAINED, "seed": seed}
        for prompt in PROMPTS:
            values = tuned.loc[tuned["prompt"] == prompt, "validation_value"] * better[benchmark]
            row[prompt] = values.max() * better[benchmark] if len(values) else np.nan
        selected = group[group["selected"].fillna(value=False)]
        if len(selected):
            one = selected.iloc[0]
            untouched = pd.isna(one["learning_rate"])
            row |= {"chosen": one["prompt"], "learning_rate": UNTOUCHED if untouched else one["learning_rate"]}
            row["epoch"] = np.nan if untouched else float(one["epoch"])
        found.append(row)
    return pd.DataFrame(found)


def prompt_error(choices: pd.DataFrame | None, matrix: ScoreMatrix) -> dict[str, np.ndarray]:
    """By protocol (benchmarks,) how far the prompt moves a model's score, as a standard deviation; no corpora.

    Half the variance over models of plain less chat: what a prompt does to all models of a benchmark alike leaves their
    order as it is and is not in it. Validation scores, averaged over seeds; what the two prompts' item noise does not
    share is in it. NaN for fewer than 3 models with both.
    """
    tasks = matrix.task_names()
    found = {p: np.full(len(tasks), np.nan) for p in (DIRECT, TRAINED)}
    if choices is None or choices.empty:
        return found
    difference = (choices["plain"] - choices["chat"]).groupby([choices[k] for k in ("protocol", "benchmark", "model")])
    of_models = difference.mean().dropna()
    for (protocol, benchmark), values in of_models.groupby(level=["protocol", "benchmark"]):
        if benchmark in tasks and len(values) >= LEAST_MODELS:
            found[protocol][tasks.index(benchmark)] = np.sqrt(values.var(ddof=1) / 2)
    return found


def adapted_shares(selections: str | Path | None, matrix: ScoreMatrix) -> pd.DataFrame:
    """One row per model that was fine-tuned, in the matrix's order: model, family, adapted_share (of the weights that a
    text goes through, those with an adapter). Models of which that is not known are left out."""
    found = pd.Series(dtype=float)
    if selections is not None:
        rows = read_table(selections, SELECTIONS).dropna(subset="adapted_share")
        found = rows.groupby("model")["adapted_share"].min()
    families = zip(matrix.models, matrix.model_facts["family"], strict=True)
    rows = [(model, family, found[model]) for model, family in families if model in found.index]
    return pd.DataFrame(rows, columns=["model", "family", "adapted_share"])


def unequal_training(shares: pd.DataFrame | None) -> list[str]:
    """A note where the most adapted model has more than UNEQUAL times the least adapted one's share."""
    if shares is None or len(shares) < 2:
        return []
    ordered = shares.sort_values("adapted_share", kind="stable")
    least, most = ordered.iloc[0], ordered.iloc[-1]
    if most["adapted_share"] <= UNEQUAL * least["adapted_share"]:
        return []
    return [
        f"The same recipe reaches the models unequally: adapters cover {least['adapted_share']:.0%} of the weights of "
        f"{least['model']} and {most['adapted_share']:.0%} of those of {most['model']}. If less of a model "
        "is adapted, it may gain less."
    ]


def equal_training_section(shares: pd.DataFrame | None, matrix: ScoreMatrix) -> Section | None:
    """The share of each model's weights that fine-tuning trains; nothing where it is not known."""
    if shares is None or shares.empty:
        return None
    least, most = shares["adapted_share"].min(), shares["adapted_share"].max()
    spread = f"{least:.0%}" if f"{least:.0%}" == f"{most:.0%}" else f"{least:.0%} to {most:.0%}"
    labels = dict(zip(matrix.models, matrix.labels, strict=True))
    return Section(
        "What fine-tuning trains",
        finding=f"Fine-tuning has adapters on {spread} of the weights of {count(len(shares), 'model')}.",
        explanation="An adapter is a pair of small trained matrices beside a weight matrix of the model. The model's "
        "own weights stay as they are. The share counts the weight matrices that a text goes through, without the "
        "embeddings and the output layer. Routers of mixtures of experts get no adapter.",
        tables=[
            Table(
                "adapted_shares",
                "Share of the weights with an adapter",
                shares.assign(model=shares["model"].map(labels)),
                formats={"adapted_share": ".1%"},
            )
        ],
    )


def prompt_section(choices: pd.DataFrame | None, matrix: ScoreMatrix) -> Section | None:
    """The choices as a table; nothing where no model had two prompts."""
    if choices is None or choices.empty:
        return None
    labels = dict(zip(matrix.models, matrix.labels, strict=True))
    parts = []
    for protocol in (DIRECT, TRAINED):
        part = choices[choices["protocol"] == protocol]
        if len(part):
            parts.append(f"for {int((part['chosen'] == 'chat').sum())} of {len(part)} choices {UNDER[protocol]}")
    frame = choices.assign(
        model=choices["model"].map(labels), protocol=choices["protocol"].map(figures.PROTOCOL_LABELS)
    )
    if frame["seed"].dropna().nunique() < 2:
        frame = frame.drop(columns="seed")
    formats = {"plain": ".4f", "chat": ".4f", "test": ".4f", "epoch": ".0f"}
    return Section(
        "Plain or chat prompt",
        finding=f"{count(choices['model'].nunique(), 'instruction-tuned model')} had both prompts. The chat prompt was "
        f"better on validation {' and '.join(parts)}.",
        explanation="The columns plain and chat are scores on the validation split: of the untouched model, or of the "
        "best fine-tune under that prompt. The better one was chosen, and plain where both are equal. A fine-tune "
        "counts only if it is strictly better than the untouched model. The test split was scored under the chosen "
        "prompt.",
        tables=[Table("prompts", "Prompts chosen on validation", frame, formats=formats)],
    )
