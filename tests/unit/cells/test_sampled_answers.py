"""Sampled answers: drawn as the model says, each from its own random numbers, several runs a benchmark."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chisquare
from toy_run import run_all, sidecars, start_run
from toy_world import toy_rows

from lm_validity.cells.models.language_model import DrawTokens, Sampling
from lm_validity.config.load import build_run
from lm_validity.errors import InputError
from lm_validity.run.workspace import Workspace
from lm_validity.tables.merge import Merger
from lm_validity.tables.schema import read_scores

RULES = ("evaluate_model", "finetune_adapter", "select_adapter", "evaluate_adapter")
GENERATION = {
    "benchmark": "toy_generation",
    "columns": {"output_type": "generate_until", "metric": "exact_match,stripped"},
}


def few_rows(split: str) -> list[dict]:
    return [row | {"aliases": ["blue"]} for row in toy_rows(split)[:10]]


def draws(sampling: Sampling, logits: torch.Tensor, number: int) -> np.ndarray:
    """The tokens that `number` rows draw from the same logits (tokens,)."""
    generators = [sampling.generator([row], 0) for row in range(number)]
    left = DrawTokens(sampling, generators)(torch.zeros(number, 1, dtype=torch.long), logits.repeat(number, 1))
    assert (torch.isfinite(left).sum(dim=1) == 1).all(), "one token is left for each row"
    return left.argmax(dim=1).numpy()


def test_tokens_are_drawn_with_the_models_probabilities():
    """2,000 rows: the counts have the expected p (a chi-square test), at temperature .5 that of doubled logits."""
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    counts = np.bincount(draws(Sampling(0.5, 1.0, 3), logits, 2000), minlength=4)
    assert chisquare(counts, 2000 * torch.softmax(2 * logits.double(), 0).numpy()).pvalue > 1e-3


def test_only_the_likeliest_tokens_that_share_top_p_are_drawn():
    """Probabilities .5, .3, .15, .05: up to .8 the first two, in the proportion 5 to 3."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    counts = np.bincount(draws(Sampling(1.0, 0.79, 5), logits, 2000), minlength=4)
    assert counts[2:].sum() == 0 and chisquare(counts[:2], [1250, 750]).pvalue > 1e-3


def answers(lm, seed: int, words=("red", "blue", "a", "red"), rows: int = 4) -> list[str]:
    lm.sampling = Sampling(1.5, 0.95, seed)
    lm.batch_size_per_gpu = rows
    options = {"until": ["never said"], "max_gen_toks": 8, "do_sample": False, "temperature": 0.0}
    try:
        return lm.generate_until([SimpleNamespace(args=(word, options)) for word in words])
    finally:
        lm.sampling = None


def test_an_answer_depends_on_its_run_and_prompt_and_not_on_its_batch(llama):
    first = answers(llama, seed=1)
    assert answers(llama, seed=1) == first == answers(llama, seed=1, rows=1)
    assert answers(llama, seed=2) != first
    assert answers(llama, seed=1, words=("blue",)) == first[1:2]
    assert first[0] != first[3], "a prompt that is asked twice is answered twice"


def test_no_generator_of_the_process_is_drawn_from(llama):
    before = torch.get_rng_state()
    answers(llama, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def scores(workspace) -> pd.DataFrame:
    """The merged table of scores."""
    Merger(workspace.run).write_scores(Path("tables"))
    return read_scores("tables/scores.parquet")


def test_runs_are_cells_and_more_runs_compute_only_themselves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sampled = {"generation": {"temperature": 2.0, "top_p": 1.0, "runs": 2}}
    one_rate = {"learning_rates": ("2e-2",)}
    workspace = start_run(tmp_path, rows=few_rows, evaluation=sampled, finetuning=one_rate, **GENERATION)
    run_all(workspace, *RULES)
    names = set(sidecars(workspace.store))
    assert {"toy_generation.final.plain.run0.test", "toy_generation.final.plain.run1.test"} <= names
    assert "toy_generation.final.plain.validation" in names, "selection does not depend on luck"
    assert "toy_generation.final.plain.test" not in names
    before = scores(workspace)
    on_test = before[before["split"] == "test"]
    assert sorted(on_test.groupby("protocol")["run"].unique().map(list)["direct"]) == [0, 1]
    assert on_test[on_test["protocol"] == "train_before_test"]["run"].nunique() == 2
    assert before[before["split"] == "validation"]["run"].isna().all()
    settings = pd.read_parquet("tables/settings.parquet")
    assert settings[settings["run"].notna()]["temperature"].eq(2.0).all() and len(settings) == 4

    written = {path: path.stat().st_mtime_ns for path in workspace.store.root.glob("*/*/*/cell.json")}
    values = workspace.run.configuration.model_dump(exclude_unset=True, mode="json")
    values["evaluation"]["generation"]["runs"] = 3
    more = Workspace(build_run(values, "toy"))
    run_all(more, *RULES)
    now = {path: path.stat().st_mtime_ns for path in more.store.root.glob("*/*/*/cell.json")}
    assert all(now[path] == time for path, time in written.items())
    new = {path.parent.name.partition("--")[0] for path in set(now) - set(written)}
    assert {name.replace("seed0.", "").removesuffix(".test").split(".")[-1] for name in new} == {"run2"}
    after = scores(more)
    pd.testing.assert_frame_equal(after[after["run"].ne(2).fillna(True)].reset_index(drop=True), before)


def test_greedy_cells_know_nothing_of_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = start_run(tmp_path, rows=few_rows, **GENERATION)
    for job in workspace.grid.jobs.values():
        assert "run" not in workspace.grid.settings(job).replace("truncate", "")
        assert all(cell.run is None for cell in job.cells)
    run_all(workspace, "evaluate_model")
    for folder in workspace.store.folders():
        record = workspace.store.read(folder)
        assert "run" not in record["key"] and not {"run", "temperature", "top_p"} & set(record["recipe"])


@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"top_p": 1.2}, {"runs": 0}, {"warmth": 0.7}])
def test_wrong_settings_are_refused(wrong):
    values = {"name": "x", "studies": ["agreement"], "evaluation": {"generation": wrong}}
    with pytest.raises(InputError, match=next(iter(wrong))):
        build_run(values, "x")
