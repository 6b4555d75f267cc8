"""The workflow from prefetch to the pages on real models and benchmarks; the bias study; a run that is killed.

The chain's and the bias study's results stay under .real/: a test that was stopped, or ran out of its fifty minutes,
goes on where it was when it is called again.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from tests.real.conftest import CACHE, DOCUMENTS, MODELS, model_folder
from tests.real.real_tasks import BANKING_CLASSES
from tests.workflow.conftest import Project

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
LONGEST = 50 * 60
ENOUGH = 280  # test documents: a standard error of an accuracy is at most .03
SIZES = {name: min(size, DOCUMENTS or size) for name, size in (("train", 64), ("validation", 32), ("test", ENOUGH))}
SHEET = "benchmark\ttask\tinclude_path\tcategory\tmetric\toutput_type\tvariant_of\n"
EMOTIONS = ("anger", "joy", "optimism", "sadness")


class RealRun(Project):
    """A run of the workflow in a folder of its own, with the real models and tasks."""

    def __init__(self, folder: Path, configuration: dict):
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.name = configuration["name"]
        (folder / "real.yaml").write_text(json.dumps(configuration))

    def sheets(self, models: tuple[str, ...], benchmarks: list[str]) -> None:
        rows = [f"{one}\t{model_folder(one)}\t{one.partition('-')[0]}\t{int('instruct' in one)}" for one in models]
        header = "model\tpath\tfamily\tinstruction_tuned\n"
        (self.folder / "models.tsv").write_text(header + "\n".join(rows) + "\n")
        (self.folder / "benchmarks.tsv").write_text(SHEET + "\n".join(benchmarks) + "\n")

    def command(self, target: str) -> tuple[str, ...]:
        common = ("--cores", "1", "--keep-going", "--rerun-incomplete", "--configfile", "real.yaml")
        return self.snakemake_command(target, *common)

    def start(self, target: str) -> subprocess.Popen:
        subprocess.run(
            (*self.command(target), "--unlock"), cwd=self.folder, env=self.environment(), capture_output=True
        )
        with open(self.folder / "screen", "a") as screen:
            return subprocess.Popen(
                self.command(target), cwd=self.folder, env=self.environment(), stdout=screen, stderr=screen,
                start_new_session=True,
            )  # fmt: skip

    def finish(self, target: str) -> float:
        """Run a target to its end; seconds. Stops after LONGEST in an orderly way, to be called again."""
        begun, snakemake = time.monotonic(), self.start(target)
        try:
            code = snakemake.wait(LONGEST)
        except subprocess.TimeoutExpired:
            snakemake.send_signal(signal.SIGINT)
            snakemake.wait(120)
            pytest.fail(f"not at its end after {LONGEST // 60} minutes: call it again, it goes on")
        finally:
            end(snakemake)
        if code:
            pytest.fail((self.folder / "screen").read_text()[-4000:])
        return time.monotonic() - begun

    def results(self) -> Path:
        return self.folder / "results" / self.name


def end(snakemake: subprocess.Popen) -> None:
    """Kill what is left of a Snakemake and its jobs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(snakemake.pid, signal.SIGKILL)
    snakemake.wait()


def configuration(name: str, sizes: dict, **more) -> dict:
    finetuning = {"epochs": 1, "learning_rates": ["1e-4"]}
    evaluation = {"device": "cpu", "max_length": 1024, "max_generated_tokens": 160}
    sheets = {"models": "models.tsv", "benchmarks": "benchmarks.tsv"}
    common = {"name": name, "studies": ["agreement"], "splits": sizes, **sheets}
    return common | {"finetuning": finetuning, "evaluation": evaluation} | more


def row(name: str, folder: Path, task: str | None = None, metric: str = "acc_norm,none", **more: str) -> str:
    values = {"category": "QA", "output_type": "multiple_choice", "variant_of": ""} | more
    return "\t".join([name, task or f"real_{name}", str(folder), values["category"], metric, values["output_type"],
                      values["variant_of"]])  # fmt: skip


def test_from_prefetch_to_the_pages(tasks, seen):
    """Both models, five benchmarks and a second wording of one."""
    run = RealRun(CACHE / f"chain{SIZES['test']}", configuration("chain", SIZES))
    generated = row("gsm8k", tasks, metric="exact_match,strict", output_type="generate_until", category="math")
    choices = [row(name, tasks) for name in ("arc_easy", "arc_challenge", "openbookqa", "boolq")]
    other = row("openbookqa_bare", tasks, variant_of="openbookqa")
    run.sheets(MODELS, [*choices, generated, other])
    seconds = run.finish("all")
    scores = pd.read_parquet(run.results() / "tables/scores.parquet")
    rows = scores[(scores["split"] == "test") & scores["metric"].isin(["acc_norm,none", "exact_match,strict"])]
    counted = rows[rows["selected"]]
    assert len(counted) == 2 * 5 * 2 and counted["value"].between(0, 1).all()
    assert (counted["stderr"] <= 0.5 / (counted["n_items"] - 1) ** 0.5 + 1e-9).all()
    assert set(rows.loc[rows["prompt_variant"].notna(), "benchmark"]) == {"openbookqa"}
    direct = counted[counted["protocol"] == "direct"]
    if SIZES["test"] == ENOUGH:
        assert (direct["stderr"] <= 0.03).all()
        easy = direct[direct["benchmark"] == "arc_easy"]
        assert (easy["value"] - 2 * easy["stderr"] > 0.25).all()  # both know more than guessing does
    assert (run.results() / "report/index.html").is_file()
    columns = ["model", "benchmark", "protocol", "prompt", "prompt_variant", "value", "stderr", "n_items"]
    shown = rows[columns].astype({"prompt_variant": object})
    seen(seconds=round(seconds), scores=json.loads(shown.to_json(orient="records")))


def test_the_bias_study_with_both_as_language_models(tasks, seen):
    """Emotions of tweets and questions to a bank: one training of a head an arm, twice."""
    run = RealRun(CACHE / "bias", {
        "name": "bias",
        "studies": ["bias"],
        "evaluation": {"device": "cpu"},
        "bias": {
            "language_models": "language_models.tsv",
            "tasks": "tasks.tsv",
            "experiments": {"head": {"m": [20], "n": [20], "subsamples": 2}},
            "training": {"epochs": 1},
        },
    })  # fmt: skip
    lines = [f"{name}\t{model_folder(name)}\tcausal\tsmall\n" for name in MODELS]
    (run.folder / "language_models.tsv").write_text("language_model\tpath\tarchitecture\tsize_class\n" + "".join(lines))
    sources = (("emotion", EMOTIONS), ("banking", BANKING_CLASSES))
    lines = [f"{name}\t{tasks / 'data'}/{name}.jsonl\ttext\tlabel\t{'|'.join(classes)}\n" for name, classes in sources]
    (run.folder / "tasks.tsv").write_text("task\tpath\ttext\tlabel\tclass_names\n" + "".join(lines))
    seconds = run.finish("bias")
    trials = pd.read_parquet(run.results() / "tables/trials.parquet")
    assert len(trials) == 2 * 2 * 2 * 3 and set(trials["arm"]) == {"base", "extra", "test"}
    assert trials.loc[trials["arm"] != "base", "pretraining_loss"].notna().all()
    share = (trials["correct"] / trials["total"]).groupby([trials["language_model"], trials["arm"]]).mean()
    seen(seconds=round(seconds), accuracy={" ".join(key): value for key, value in share.items()})


def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(tasks, seen):
    """SmolLM2 on OpenBookQA: killed while it scores and while it trains, then run to its end."""
    sizes = {"train": 24, "validation": 12, "test": 16}
    tables = {}
    for name, kills in (("undisturbed", ()), ("killed", ("evaluate_model", "finetune_adapter"))):
        folder = CACHE / "kills" / name
        shutil.rmtree(folder, ignore_errors=True)
        run = RealRun(folder, configuration("kills", sizes))
        run.sheets(MODELS[:1], [row("openbookqa", tasks)])
        for rule in kills:
            kill_in(run, rule)
        run.finish("scores")
        tables[name] = run.tables("kills")
    assert tables["killed"] == tables["undisturbed"]
    seen(bytes={name: len(table) for name, table in tables["killed"].items()})


def kill_in(run: RealRun, rule: str) -> None:
    """SIGKILL Snakemake and its jobs some seconds after the first job of a rule began."""
    snakemake, logs = run.start("scores"), run.results() / "logs" / rule
    try:
        for _ in range(LONGEST):
            if any("computing" in path.read_text() for path in logs.glob("*/*.log")):
                break
            assert snakemake.poll() is None, "it ended before it was killed"
            time.sleep(1)
        time.sleep(5)
        assert snakemake.poll() is None
    finally:
        end(snakemake)
