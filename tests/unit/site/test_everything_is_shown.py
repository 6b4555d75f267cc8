"""Every quantity of results.parquet is on a page, in a table or on a card of its site."""

import csv
import json
import re

import altair
import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft7Validator
from tests.unit.studies.bias.conftest import simulated_rows

from lm_validity.config.sections import Agreement, Reports
from lm_validity.site.report import Given, report_site
from lm_validity.tables.schema import SCORES, TRIALS, write_table

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
SHARE = (
    0.25  # of a quantity's values: a card has those of one distance in size, a figure those of the chosen benchmarks
)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The site, and the specifications of its figures, of both protocols, curves of two architectures in three sizes, a
    group, trials."""
    figures: dict[str, dict] = {}
    monkeypatch.setattr("lm_validity.pages.figures.save_figure", lambda spec, stem: figures.update({str(stem): spec}))
    rng, rows, sheet = np.random.default_rng(0), [], []
    row = {"split": "test", "metric": "acc,none", "selected": True, "source": "test", "stderr": 0.012}
    for number in range(12):
        model, size = f"model-{number}", 2.0 ** (number % 6)
        facts = {
            "family": "FGH"[number % 3],
            "parameters_b": size,
            "tokens_b": 100 + 17 * number,
            "studies": "agreement",
        }
        sheet.append({"model": model, **facts, "instruction_tuned": number % 2})
        for place, benchmark in enumerate(BENCHMARKS):
            score = 0.3 + 0.04 * (number % 6) + 0.002 * place
            for protocol, noise in (("direct", 0.06), ("train_before_test", 0.02)):
                value = score + 0.05 * (protocol != "direct") + noise * rng.normal()
                rows.append({"model": model, "benchmark": benchmark, "protocol": protocol, "value": value, **row})
    for size in (1, 2, 4):
        for architecture in "xy":
            model, facts = f"{architecture}-{size}b", {"size": f"{size}b", "architecture": architecture}
            sheet.append({"model": model, "parameters_b": size, "studies": "signal", **facts})
            for step in range(1, 13):
                for benchmark in BENCHMARKS:
                    value = 0.25 + 0.01 * step * (1 + 0.1 * size) + 0.01 * (architecture == "x") + 0.02 * rng.normal()
                    at = {"checkpoint": f"step{step}", "step": step * 1000, "tokens_b": 20.0 * step}
                    rows.append(
                        {"model": model, "benchmark": benchmark, "protocol": "direct", "value": value, **at, **row}
                    )
    frame = pd.DataFrame(rows)
    write_table(frame.assign(checkpoint=frame["checkpoint"].fillna("final")), SCORES, tmp_path / "scores.parquet")
    pd.DataFrame(sheet).to_csv(tmp_path / "models.tsv", sep="\t", index=False)
    facts = {"metric": "acc,none", "output_type": "multiple_choice", "chance": 0.25, "n_items": 900}
    kinds = pd.DataFrame({"benchmark": BENCHMARKS, "category": list("uuvvww")}).assign(**facts)
    kinds.to_csv(tmp_path / "benchmarks.tsv", sep="\t", index=False)
    write_table(simulated_rows(), TRIALS, tmp_path / "trials.parquet")
    sheets = {name: tmp_path / f"{name}.tsv" for name in ("models", "benchmarks")}
    asked = {"section": Reports(resamples=40), "agreement": Agreement(groups=["instruction_tuned"])}
    given = Given(**sheets, **asked, processes=1)
    report_site([tmp_path / "scores.parquet", tmp_path / "trials.parquet"], tmp_path / "site", given)
    return tmp_path / "site", figures


BENCHMARKS = [f"benchmark {letter}" for letter in "abcdef"]


def leaves(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        yield value
    else:
        for one in inner:
            yield from leaves(one)


def shown(site) -> tuple[set[str], dict[int, set[float]]]:
    """The numbers of tables, cards and figures, to six digits; and those in texts, by the digits after the point."""
    exact, texts = set[str](), []
    for path in site.glob("*/tables/*.csv"):
        with open(path, encoding="utf-8", newline="") as handle:
            texts.append(" ".join(cell for line in csv.reader(handle) for cell in line))
    exact |= {f"{float(number.replace(',', '')):.6g}" for number in NUMBER.findall(" ".join(texts))}
    texts = []
    for path in (*site.glob("*/page.json"), *site.glob("cards/*/card.json")):
        found = list(leaves(json.loads(path.read_text(encoding="utf-8"))))
        exact |= {f"{one:.6g}" for one in found if isinstance(one, int | float)}
        texts += [one for one in found if isinstance(one, str) and "base64" not in one]
    printed: dict[int, set[float]] = {}
    for number in NUMBER.findall(" ".join(texts)):
        digits = len(number.partition(".")[2])
        printed.setdefault(digits, set()).add(round(float(number.replace(",", "")), digits))
    return exact, printed


def test_every_quantity_is_on_a_page_in_a_table_or_on_a_card_and_every_figure_is_vega_lite(made):
    site, figures = made
    exact, printed = shown(site)

    def appears(row) -> bool:
        values = (row.value, 100 * row.value, -row.value)
        if any(f"{value:.6g}" in exact for value in values):
            return True
        one_of_all = pd.isna(row.subject) and (abs(row.value) >= 10 or not float(row.value).is_integer())
        return one_of_all and any(round(v, digits) in known for digits, known in printed.items() for v in values)

    missing = []
    for path in sorted(site.glob("*/results.parquet")):
        rows = pd.read_parquet(path)
        rows = rows[rows["value"].notna() & (rows["unit"] != "yes_or_no")]
        rows = rows.drop_duplicates(["quantity", "subject", "other", "protocol", "conditions"])
        for quantity, own in rows.groupby("quantity", sort=False):
            share = np.mean([appears(row) for row in own.itertuples()])
            if share < SHARE:
                missing.append((path.parent.name, quantity, round(float(share), 2), len(own)))
    assert missing == []
    # the charts are put together without a look at the schema; here they are checked whole
    assert len(figures) > 30
    validator = Draft7Validator(altair.load_schema())
    for spec in figures.values():
        validator.validate(spec | {"config": {}})
