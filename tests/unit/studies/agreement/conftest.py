"""Small tables for the two reports, and a quick way to run them."""

import json

import pandas as pd

from lm_validity.config.sections import Reports
from lm_validity.pages.page import Page
from lm_validity.results.put import Column, Rows
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.factors import factors
from lm_validity.studies.agreement.incomplete import put_incomplete
from lm_validity.studies.agreement.report import agreement, report_agreement
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, write_table

DIRECT, TRAINED = "direct", "train_before_test"


# four models, three benchmarks and a corpus (bits per byte, lower is better)
SMALL = {
    DIRECT: {
        "a": [0.1, 0.2, 0.3, 0.4],
        "b": [0.1, 0.3, 0.2, 0.4],  # one of six pairs discordant with a: tau 2/3
        "c": [0.4, 0.3, 0.2, 0.1],  # reversed: tau -1 with a, -2/3 with b
        "wiki": [1.3, 1.2, 1.1, 1.0],  # orders models as a does
    },
    TRAINED: {
        "a": [0.1, 0.2, 0.3, 0.4],
        "b": [0.1, 0.2, 0.3, 0.4],
        "c": [0.1, 0.2, 0.3, 0.3],  # a tie: 5 of 6 pairs: 5 / sqrt(30)
        "wiki": [1.3, 1.2, 1.1, 1.0],
    },
}
NAMES = ["m0", "m1", "m2", "m3"]


def score_rows(table=SMALL, names=NAMES, stderr=0.01) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"model": model, "checkpoint": "final", "benchmark": benchmark, "protocol": protocol, "split": "test",
             "metric": "acc,none", "value": value, "stderr": stderr, "selected": True, "source": "test"}
            for protocol, columns in table.items()
            for benchmark, values in columns.items()
            for model, value in zip(names, values, strict=True)
            if value is not None
        ]
    )  # fmt: skip


MODELS = "model,family,parameters_b,tokens_b,instruction_tuned\nm0,F,1,10,0\nm1,F,2,10,0\nm2,F,3,10,0\nm3,G,4,10,1\n"
BENCHMARKS = (
    "benchmark,category,metric,output_type,higher_is_better\na,x,acc,multiple_choice,1\nb,x,acc,multiple_choice,1\n"
    "c,y,acc,multiple_choice,true\nwiki,p,acc,loglikelihood_rolling,0\n"
)


def written(tmp_path, rows, models=MODELS, benchmarks=BENCHMARKS) -> list:
    """The paths of a scores table and the two sheets."""
    write_table(rows, SCORES, tmp_path / "scores.parquet")
    (tmp_path / "models.csv").write_text(models, encoding="utf-8")
    (tmp_path / "benchmarks.csv").write_text(benchmarks, encoding="utf-8")
    return [tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")]


def reported(sources, output, section, report) -> tuple[dict, Rows]:
    """page.json and the rows that a report writes."""
    report(sources, output, section)
    return json.loads((output / "page.json").read_text(encoding="utf-8")), Rows.read(output / "results.parquet")


def run(tmp_path, rows, models=MODELS, benchmarks=BENCHMARKS, report=report_agreement, resamples=0):
    """The rows that a report writes, and the notes of its page as one text."""
    sources = Sources(*written(tmp_path, rows, models, benchmarks))
    page, found = reported(sources, tmp_path / "report", Reports(resamples=resamples), report)
    return found, "\n".join(page["notes"])


def by_subject(rows: Rows, quantity: str, **place) -> dict:
    """The values of a quantity by subject; None where missing."""
    return {row.subject: row.value for row in rows.all(quantity, **place)}


def matrix_of(tmp_path, rows, **sheets) -> ScoreMatrix:
    return read_score_matrix(Sources(*written(tmp_path, rows, **sheets)))


def agreement_page(tmp_path, rows, resamples=0, **sheets) -> tuple[Page, Rows]:
    """The page and the rows of the agreement report."""
    return agreement(Data.of(matrix_of(tmp_path, rows, **sheets), resamples))


def agreement_of(tmp_path, rows, resamples=0, **sheets) -> Rows:
    """The rows of the agreement report."""
    return agreement_page(tmp_path, rows, resamples, **sheets)[1]


def incomplete_of(matrix, protocol) -> tuple[Rows, pd.DataFrame]:
    """The rows on missing cells of a protocol, and the table of predictions."""
    rows = Rows("agreement")
    put_incomplete(rows, Data.of(matrix))
    found = Rows("agreement", [row for row in rows if row.protocol == protocol])
    return found, predictions_of(found, protocol)


def predictions_of(rows, protocol) -> pd.DataFrame:
    """By model and benchmark what was predicted, with the ends of its interval."""
    parts = {"predicted": "value", "low": "low", "high": "high"}
    columns = {name: Column("score_predicted", name, part=part) for name, part in parts.items()}
    table = rows.table(["subject", "other", "planned"], columns, protocol=protocol)
    return table.rename(columns={"subject": "model", "other": "benchmark"})


def factors_of(tmp_path, rows) -> Rows:
    """The rows of the factors report."""
    return factors(matrix_of(tmp_path, rows))[1]
