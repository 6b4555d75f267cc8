"""Several files of one model whose answers were sampled are runs; anything else is a conflict, a copy or newer."""

import json
from pathlib import Path

import pytest

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files

DRAWN = {"do_sample": True, "temperature": 0.8}


def lm_eval(folder: Path, value: float, seed: int, date: float, generation: dict, kind: str = "generate_until") -> None:
    """A result file of lm-eval."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "results": {"sums": {"alias": "sums", "exact_match,none": value, "exact_match_stderr,none": 0.05}},
        "configs": {"sums": {"task": "sums", "output_type": kind, "generation_kwargs": generation}},
        "n-shot": {"sums": 0},
        "higher_is_better": {"sums": {"exact_match": True}},
        "config": {"model": "vllm", "model_args": f"pretrained=org/a,seed={seed}", "random_seed": seed},
        "model_name": "org/a",
        "date": date,
    }
    (folder / f"results_2026-01-0{int(date)}T00-00-00.000000.json").write_text(json.dumps(document))


def lighteval(folder: Path, value: float, seed: int, temperature: float | None) -> None:
    """A result file of lighteval."""
    folder.mkdir(parents=True, exist_ok=True)
    general = {"model_name": "org/a", "generation_parameters": {"seed": seed, "temperature": temperature, "top_p": 0.9}}
    document = {"config_general": general, "results": {"custom|sums|0": {"match": value, "match_stderr": 0.05}}}
    (folder / f"results_2026-01-0{seed + 1}T00-00-00.000000.json").write_text(json.dumps(document))


def runs(folder: Path) -> list[tuple[int, float]]:
    scores, _ = import_files([folder], folder.parent / "out")
    return [(run, value) for run, value in zip(scores["run"], scores["value"], strict=True)]


def test_sampled_files_of_lm_eval_are_runs_in_the_order_of_their_seeds(tmp_path):
    for seed, value, date in ((3, 0.6, 1), (1, 0.4, 2), (2, 0.5, 3)):
        lm_eval(tmp_path / "in", value, seed, date, DRAWN)
    assert runs(tmp_path / "in") == [(0, 0.4), (1, 0.5), (2, 0.6)]


def test_sampled_files_of_lighteval_are_runs(tmp_path):
    for seed, value in enumerate((0.4, 0.5, 0.7)):
        lighteval(tmp_path / "in", value, seed, 0.6)
    assert runs(tmp_path / "in") == [(0, 0.4), (1, 0.5), (2, 0.7)]


def test_a_copy_of_a_run_is_no_run(tmp_path):
    for folder in ("in/one", "in/copy"):
        lighteval(tmp_path / folder, 0.4, 0, 0.6)
        lighteval(tmp_path / folder, 0.5, 1, 0.6)
    assert runs(tmp_path / "in") == [(0, 0.4), (1, 0.5)]


@pytest.mark.parametrize(
    ("generation", "kind"), [({"do_sample": False, "temperature": 0.8}, "generate_until"), (DRAWN, "multiple_choice")]
)
def test_deterministic_scores_of_other_seeds_stay_a_conflict(tmp_path, generation, kind):
    lm_eval(tmp_path / "in", 0.4, 1, 1, generation, kind)
    lm_eval(tmp_path / "in", 0.6, 2, 2, generation, kind)
    with pytest.raises(InputError, match="different values"):
        import_files([tmp_path / "in"], tmp_path / "out")


def test_other_temperatures_are_no_runs_of_one_score(tmp_path):
    lighteval(tmp_path / "in", 0.4, 0, 0.6)
    lighteval(tmp_path / "in", 0.5, 1, 0.9)
    with pytest.raises(InputError, match="different values"):
        import_files([tmp_path / "in"], tmp_path / "out")
