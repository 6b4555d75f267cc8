"""The pool sheet and the sheets generated from it."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from lm_validity.config.load import build_run
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import read_pool
from lm_validity.errors import InputError
from lm_validity.miniature.build import BENCHMARKS

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "workflow" / "scripts"))
from miniature_sheets import benchmarks_sheet, model_sheets

ROOT = Path(__file__).resolve().parents[3]
HEADER = "model\tfamily\tarchitecture\tsize\thidden_size\tlayers\tsteps\tlearning_rate\tcheckpoint_every\ttuned_from"
GOOD = "a\tweb\tllama\txs\t32\t2\t10\t1e-3\t\t"


@pytest.mark.parametrize("name", ["config.yaml", "test.yaml"])
def test_committed_sheets_are_those_the_pool_gives(name):
    """Else: python workflow/scripts/miniature_sheets.py config/…"""
    values = yaml.safe_load((ROOT / "config" / name).read_text())
    settings = MiniatureSettings.model_validate(values["miniature"])
    for path, text in model_sheets(settings, read_pool(ROOT / settings.pool)).items():
        committed = ROOT / values["models"] if not path else ROOT / "config" / path
        assert committed.read_text() == text, f"{committed.name} is out of date"
    only = () if name == "config.yaml" else ("cloze", "table")
    assert (ROOT / values["benchmarks"]).read_text() == benchmarks_sheet(only)


def test_demo_has_what_the_studies_need(monkeypatch):
    monkeypatch.chdir(ROOT)
    run = build_run(yaml.safe_load((ROOT / "config" / "config.yaml").read_text()), "config.yaml")
    agreement = [model for model in run.models.values() if "agreement" in model.studies]
    assert Counter(model.family for model in agreement) == dict.fromkeys(("web", "forum", "data", "exam"), 3)
    assert [model.model for model in run.models.values() if model.instruction_tuned] == ["web-llama-s-chat"]
    signal = [model for model in run.models.values() if "signal" in model.studies]
    science = {(model.size, model.architecture) for model in signal if model.training_data == "science"}
    assert len(science) == 6
    assert {model.size for model in signal if model.training_data == "web"} == {"s"}
    assert all(len(model.checkpoints) >= 16 for model in signal)
    assert len({tuple(point.iteration for point in model.checkpoints) for model in signal}) == 1
    kinds = {benchmark.output_type for benchmark in run.benchmarks.values()}
    assert kinds == {"multiple_choice", "generate_until", "loglikelihood_rolling"}
    assert any("validation" not in benchmark.splits for benchmark in BENCHMARKS)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (GOOD.replace("10", "many"), "column 'steps', value 'many'"),
        (GOOD.replace("web", "book"), "column 'family', value 'book'"),
        (GOOD.replace("a", "a/b", 1), "column 'model', value 'a/b'"),
        (GOOD.replace("32", "33"), "hidden_size must be a multiple of 4"),
        (GOOD[:-1] + "4\t", "steps must be a multiple of checkpoint_every"),
        (GOOD[:-1], "row 2: 9 values for 10 columns"),
        (f"{GOOD}\n{GOOD}", "row 3.*twice"),
        (f"{GOOD}\nc{GOOD[1:]}b", "column 'tuned_from', value 'b': no model of the pool"),
        (f"{GOOD}\nc{GOOD[1:].replace('32', '64')}a", "they differ in 'hidden_size'"),
        ("", "no rows"),
        (None, "no such sheet"),
    ],
)
def test_bad_pool_rows_are_named(tmp_path, row, problem):
    sheet = tmp_path / "pool.tsv"
    if row is not None:
        sheet.write_text(f"{HEADER}\n{row}\n" if row else f"{HEADER}\n")
    with pytest.raises(InputError, match=problem):
        read_pool(sheet)
