"""Runs of sampled answers as each format has them: scores by run, items by run; anything else is a conflict, a copy or
newer."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.unit.tables.conftest import inspect_log, put

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.schema import ITEMS, read_table

ANSWERS = np.array([[1, 0, 1, 0, 1, 1], [1, 1, 1, 0, 0, 1], [0, 0, 1, 0, 1, 1]])  # (runs, items)


def imported(tmp_path, *, says=()):
    """Scores, items (None: none) and the log's lines of `in`."""
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    path = tmp_path / "out/items.parquet"
    items = read_table(path, ITEMS) if path.exists() else None
    lines = log.lines(scores)
    for each in says:
        assert any(each in line for line in lines), lines
    return scores, items, lines


def by_run(scores: pd.DataFrame, model: str = "acme/ant") -> dict:
    own = scores[scores["model"] == model]
    return dict(zip(own["run"].astype(object), own["value"].round(9), strict=True))


def expected(answers=ANSWERS) -> dict:
    return {run: round(float(own.mean()), 9) for run, own in enumerate(answers)}


def check_items(items: pd.DataFrame, answers=ANSWERS) -> None:
    table = items.pivot(index="run", columns="doc_id", values="correct").to_numpy(dtype=float)
    np.testing.assert_array_equal(table, answers)


def lm_eval(tmp_path, run, answers, *, temperature=0.7, results=True, samples=True):
    """A result file of lm-eval and its samples."""
    date = f"2026-01-0{run + 1}T10-00-00.000000"
    keywords = {"do_sample": temperature > 0, "temperature": temperature}
    folder = tmp_path / "in/acme__ant"
    if results:
        config = {"output_type": "generate_until", "generation_kwargs": keywords}
        arguments = {"model": "hf", "model_args": "pretrained=acme/ant", "random_seed": run, "torch_seed": run}
        metrics = {"alias": "sums", "exact_match,strict": float(answers.mean()), "exact_match_stderr,strict": 0.1}
        document = {"results": {"sums": metrics}, "configs": {"sums": config}, "config": arguments}
        put(folder / f"results_{date}.json", document | {"model_name": "acme/ant"})
    lines = [
        {"doc_id": n, "doc": {}, "target": "1", "filter": "strict", "metrics": ["exact_match"], "resps": [[str(value)]],
         "exact_match": float(value), "arguments": {"gen_args_0": {"arg_0": "q", "arg_1": keywords}}}
        for n, value in enumerate(answers)
    ]  # fmt: skip
    if samples:
        put(folder / f"samples_sums_{date}.jsonl", "\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize(("results", "copied"), [(True, False), (False, False), (False, True)])
def test_samples_of_several_runs_of_lm_eval(tmp_path, results, copied):
    """With or without result files; a copy of a file of samples is no further run."""
    for run, answers in enumerate(ANSWERS):
        lm_eval(tmp_path, run, answers, results=results)
    if copied:
        folder = tmp_path / "in/acme__ant"
        first = folder / "samples_sums_2026-01-01T10-00-00.000000.jsonl"
        put(folder / "samples_sums_2026-01-05T10-00-00.000000.jsonl", first.read_text())
    scores, items, _ = imported(tmp_path)
    assert by_run(scores) == expected()
    check_items(items)


def test_equal_greedy_scores_of_other_seeds_are_copies(tmp_path):
    for run in range(3):
        lm_eval(tmp_path, run, ANSWERS[0], temperature=0.0, samples=False)
    scores, *_ = imported(tmp_path, says=["another file has the score too (2)"])
    assert scores["value"].tolist() == [pytest.approx(4 / 6)] and scores["run"].isna().all()


def test_epochs_that_are_not_joined_by_their_mean_are_one_score(tmp_path):
    inspect_log(tmp_path / "in/a.json", "m", ANSWERS, epochs=3, reported=5 / 6)  # at least one of three is right
    scores, items, _ = imported(tmp_path)
    assert scores["value"].tolist() == [pytest.approx(5 / 6)] and scores["run"].isna().all() and len(items) == 6


def test_logs_of_inspect_with_a_temperature_are_runs(tmp_path):
    for run, answers in enumerate(ANSWERS):
        more = {"created": f"2026-01-0{run + 1}T10:00:00+00:00", "model_generate_config": {"temperature": 0.7}}
        inspect_log(tmp_path / f"in/{run}.json", "hf/acme/ant", answers, **more)
    scores, items, _ = imported(tmp_path)
    assert by_run(scores) == expected()
    check_items(items)


def lighteval(folder, seed, value, temperature=0.7):
    """A written answer and a choice, which no sampling changes."""
    tasks = {"lighteval|sums|0": {"match": value, "match_stderr": 0.1}, "leaderboard|arc|0": {"acc": 0.5}}
    general = {"model_name": "acme/ant", "generation_parameters": {"seed": seed, "temperature": temperature}}
    config = {"lighteval|sums": {"generation_size": 512}, "leaderboard|arc": {"generation_size": 1}}
    name = f"results_2026-01-0{seed + 1}T10-00-00.000000.json"
    put(folder / name, {"config_general": general, "results": tasks, "config_tasks": config})


def test_choices_of_lighteval_are_not_sampled_and_copies_are_no_runs(tmp_path):
    for seed, value in enumerate((0.4, 0.5, 0.6)):
        lighteval(tmp_path / "in/one", seed, value)
        lighteval(tmp_path / "in/copy", seed, value)
    scores, *_ = imported(tmp_path, says=["Left out, since another file has the score"])
    assert by_run(scores[scores["benchmark"] == "sums"]) == {0: 0.4, 1: 0.5, 2: 0.6}
    choices = scores[scores["benchmark"] == "arc"]
    assert choices["run"].isna().all() and choices["value"].tolist() == [0.5]


def of_seed(folder, seed, generation, kind="generate_until"):
    """A result file of lm-eval with a seed."""
    document = {
        "results": {"sums": {"exact_match,none": 0.2 * seed, "exact_match_stderr,none": 0.05}},
        "configs": {"sums": {"output_type": kind, "generation_kwargs": generation}},
        "config": {"model": "vllm", "model_args": f"pretrained=org/a,seed={seed}", "random_seed": seed},
        "model_name": "org/a",
    }
    put(folder / f"results_2026-01-0{seed}T00-00-00.000000.json", document)


@pytest.mark.parametrize(
    "files",
    [
        lambda folder: [of_seed(folder, seed, {"do_sample": False, "temperature": 0.8}) for seed in (1, 2)],
        lambda folder: [of_seed(folder, seed, {"temperature": 0.8}, "multiple_choice") for seed in (1, 2)],
        lambda folder: [lighteval(folder, 0, 0.4, 0.6), lighteval(folder, 1, 0.5, 0.9)],
    ],
    ids=["greedy", "choices", "temperatures"],
)
def test_what_is_no_run_of_one_score_is_a_conflict(tmp_path, files):
    files(tmp_path / "in")
    with pytest.raises(InputError, match="different values"):
        import_files([tmp_path / "in"], tmp_path / "out")
