"""A miniature world of eight families, three of which saw the formats of the tests: the readiness report finds the gap.

In the control world every family saw every format, and it finds none.
"""

import sys
from pathlib import Path

import pandas as pd
import pytest
from tests.workflow.conftest import Project

from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import read_pool

# of each family: whose formats it saw (`forum` those of both tests), and the steps of its two models, which overlap
FAMILIES = {
    "a": ("forum", 550, 450),
    "b": ("forum", 600, 500),
    "c": ("forum", 500, 550),
    "d": ("web", 550, 450),
    "e": ("data", 600, 500),
    "f": ("exam", 500, 550),
    "g": ("web", 600, 450),
    "h": ("data", 550, 500),
}
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workflow" / "scripts"))
from miniature_sheets import benchmarks_sheet, model_sheets  # noqa: E402

BENCHMARKS = ("question", "dialogue")
COLUMNS = "model family training_data architecture size hidden_size layers steps learning_rate checkpoint_every studies"


def world(folder, formats) -> Project:
    """The sheets and the configuration of the world."""
    project = Project(folder)
    rows = [
        (f"{name}-{size}", seen, "science", "llama", size, width, 2, steps, rate, "", "agreement")
        for name, (seen, *both) in FAMILIES.items()
        for (size, width, rate), steps in zip((("xs", 32, "5e-3"), ("s", 64, "4e-3")), both, strict=True)
    ]
    pool = folder / "config" / "pool.tsv"
    pool.write_text("\n".join("\t".join(map(str, row)) for row in (COLUMNS.split(), *rows)) + "\n")
    sheet = model_sheets(MiniatureSettings(pool=str(pool), formats=formats), read_pool(pool))[""]
    header, *lines = (line.split("\t") for line in sheet.splitlines())
    table = pd.DataFrame(lines, columns=header).assign(
        family=lambda one: one["model"].str[0], saw_formats=lambda one: one["family"].isin(["a", "b", "c"]).astype(int)
    )
    table.to_csv(folder / "config" / "models_of_world.tsv", sep="\t", index=False)
    (folder / "config" / "benchmarks_of_world.tsv").write_text(benchmarks_sheet(BENCHMARKS))
    (folder / "config" / "world.yaml").write_text(
        "name: world\nstudies: [agreement]\nmodels: config/models_of_world.tsv\n"
        "benchmarks: config/benchmarks_of_world.tsv\nevaluation: { device: cpu, batch_size: 64 }\n"
        "finetuning: { learning_rates: [3e-3] }\nagreement: { groups: [saw_formats] }\n"
        f"miniature: {{ pool: config/pool.tsv, formats: {formats} }}\n"
    )
    return project


@pytest.mark.slow
@pytest.mark.parametrize("formats", ["families", "control"])
def test_the_gap_of_a_world_is_found_and_none_where_there_is_none(tmp_path, formats):
    project = world(tmp_path, formats)
    project.snakemake("results/world/reports/readiness/results.parquet", "--configfile", "config/world.yaml")
    rows = pd.read_parquet(tmp_path / "results" / "world" / "reports" / "readiness" / "results.parquet")
    change = rows[(rows["quantity"] == "readiness_change") & rows["subject"].isna()].iloc[0]
    direct = rows[(rows["quantity"] == "lead") & rows["subject"].isna() & (rows["protocol"] == "direct")].iloc[0]
    assert change["n"] == 16
    if formats == "families":
        assert direct["low"] > 0
        assert change["high"] < 0
    else:
        assert change["low"] < 0 < change["high"]
