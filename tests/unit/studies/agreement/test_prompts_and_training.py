"""How the scores came about: the prompts that were chosen, and how much of the weights was trained."""

from collections import Counter

import pandas as pd
import pyarrow.parquet as pq
from tests.unit.studies.agreement.conftest import DIRECT, run, score_rows

from lm_validity.config.sections import Reports
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SELECTIONS, write_table


def test_the_prompts_of_instruction_tuned_models_are_shown_with_their_validation_scores(tmp_path, monkeypatch):
    rows = score_rows().assign(prompt="plain")
    tuned = rows[(rows["model"] == "m3") & (rows["protocol"] == DIRECT) & (rows["benchmark"] != "wiki")]
    validation = [
        tuned.assign(split="validation", prompt=prompt, value=value, selected=prompt == "chat")
        for prompt, value in (("plain", 0.3), ("chat", 0.5))
    ]
    chosen = {"seed": 0, "metric": "acc,none", "direct_validation_value": 0.5, "diverged": False, "selected": False}
    tried = [("plain", None, None, 0.5), ("plain", "1e-3", 2, 0.6), ("chat", "1e-3", 3, 0.7), ("chat", "3e-3", 1, 0.9)]
    selections = pd.DataFrame(
        [
            chosen
            | {"model": "m3", "benchmark": "a", "prompt": p, "learning_rate": r, "epoch": e, "validation_value": v}
            for p, r, e, v in tried
        ]
    )
    selections.loc[2, "selected"] = True
    selections.loc[3, "diverged"] = True
    other = selections.iloc[[1]].assign(model="m1", adapted_share=0.98)
    selections = pd.concat([selections.assign(adapted_share=[None, 0.14, 0.14, 0.14]), other], ignore_index=True)
    write_table(selections, SELECTIONS, tmp_path / "selections.parquet")
    run(tmp_path, pd.concat([rows, *validation]))
    read, times = pq.read_table, Counter()
    monkeypatch.setattr("pyarrow.parquet.read_table", lambda path: times.update([path.name]) or read(path))
    sources = Sources(*(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")))
    report_agreement(sources, tmp_path / "report", Reports(resamples=0), tmp_path / "selections.parquet")
    assert times == {"scores.parquet": 1, "selections.parquet": 1}  # all scores; those that count are remembered
    table = pd.read_csv(tmp_path / "report" / "tables" / "prompts.csv")
    assert list(table["benchmark"]) == ["a", "b", "c", "a"] and set(table["model"]) == {"m3"}
    assert (table["chosen"] == "chat").all() and list(table["test"]) == [0.4, 0.4, 0.1, 0.4]
    assert list(table["plain"]) == [0.3, 0.3, 0.3, 0.6] and list(table["chat"]) == [0.5, 0.5, 0.5, 0.7]
    assert table["epoch"].iloc[3] == 3 and table["learning_rate"].iloc[3] == 1e-3
    assert "for 3 of 3 choices under direct evaluation and for 1 of 1" in (
        tmp_path / "report" / "index.html"
    ).read_text(encoding="utf-8")
