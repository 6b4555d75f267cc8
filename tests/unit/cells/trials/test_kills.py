"""A worker that is killed (SIGKILL, any moment) and started again ends with the tables of an undisturbed one."""

from pathlib import Path

import pytest
from kill_worker import kill_and_resume

from lm_validity.cells.trials.worker import ResidentWorker, write_tables
from lm_validity.config.sections import Adapter


def plans_of(plan_of, subsamples: int) -> dict:
    """A head on each architecture, its base arms shared with another n, and zero-shot with adapters."""
    options = {"subsamples": tuple(range(1, subsamples + 1)), "share_base": ((20, subsamples),)}
    zero_shot = {"classification": {"method": "zero_shot"}, "pretraining": {"adapter": Adapter(rank=4)}}
    return {
        "bert": plan_of("bert", **options),
        "gpt2": plan_of("gpt2", **options),
        "zero-shot": plan_of("gpt2", **options, **zero_shot),
    }


def tables(plan, folder: Path, output: Path) -> dict[str, bytes]:
    output.mkdir(parents=True)
    write_tables(plan, folder, output)
    return {path.name: path.read_bytes() for path in output.iterdir()}


def kill_and_compare(plans: dict, folder: Path, kills: int, early_fork) -> None:
    for number, (name, plan) in enumerate(plans.items()):
        (folder / name / "killed").mkdir(parents=True)
        counts = early_fork.call(kill_and_resume, plan, folder / name / "killed", kills, number)
        # no trial lost: every process found those before it and finished at least one of its own
        assert len(counts) == kills and all(later > earlier for earlier, later in zip([0, *counts], counts))  # noqa: B905
        assert counts[-1] < len(plan.subsamples)
        ResidentWorker().run(plan, folder / name / "undisturbed")
        expected = tables(plan, folder / name / "undisturbed", folder / name / "expected")
        assert tables(plan, folder / name / "killed", folder / name / "found") == expected


@pytest.mark.parametrize(("kills", "subsamples"), [(1, 4), pytest.param(20, 70, marks=pytest.mark.slow)])
def test_kills_lose_no_trial(plan_of, tmp_path, early_fork, kills, subsamples):
    kill_and_compare(plans_of(plan_of, subsamples), tmp_path, kills, early_fork)
