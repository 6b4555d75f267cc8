"""What Snakemake would do, from the outside: job counts, memory, no network, no heavy import at parse time."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from tests.workflow.warm_programs import BARE_PROGRAM

ROOT = Path(__file__).resolve().parents[2]


def jobs(output: str) -> dict[str, int]:
    """rule -> jobs, from a dry run's table."""
    table = output.split("Job stats:")[1]
    return {rule: int(count) for rule, count in re.findall(r"^(\w+)\s+(\d+)$", table, re.MULTILINE)}


HEAVY = {"torch", "transformers", "peft", "lm_eval", "datasets", "altair", "scipy", "sklearn", "numpyro", "jax"}
# runs a command and writes the peak memory of that command alone
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open("peak_kb", "w"))
sys.exit(code)
"""


INSTRUCTION_TUNED, TUNED = 24, (61 + 24) * 24  # of 61 models; pairs of the published grid, plainly and in chat
# configuration -> jobs by rule: models x benchmarks x rates x seeds, checkpoints, or batches of 25 subsamples
SHIPPED = [
    pytest.param(
        "paper/train_before_test.yaml",
        {"prefetch_model": 61, "prefetch_benchmark": 24, "split_benchmark": 24, "evaluate_model": TUNED}
        | {"finetune_adapter": TUNED * 3 * 3, "select_prompt": INSTRUCTION_TUNED * 24}
        | {"select_adapter": 61 * 24 * 3, "evaluate_adapter": 61 * 24 * 3},
        marks=pytest.mark.slow,
    ),
    # the page says 97 jobs; as many cells a job as fit
    ("small/small.yaml", {"prefetch_model": 8, "prefetch_benchmark": 8, "split_benchmark": 8, "evaluate_model": 8 + 2}
     | {"select_prompt": 2, "total": 98}),
    ("paper/early_training.yaml", {"prefetch_model": 6, "prefetch_benchmark": 8, "split_benchmark": 8}
     | {"evaluate_model": 6 * 27, "report_signal": 1, "finetune_adapter": 0, "report_agreement": 0, "make_world": 0}),
    # 4 + 4 + 2 + 1 batches at n = 50, 100, 200, 500
    ("paper/pretrain_on_test.yaml", {"prefetch_language_model": 3, "prefetch_task": 25, "merge_trials": 1}
     | {"pretrain_on_test": (2 + 1) * 25 * 2 * 11 + 2 * 25, "report_bias": 1, "merge_scores": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("configuration", "expected"), SHIPPED)
def test_a_shipped_study_is_planned_without_network_in_less_than_a_gigabyte(project, configuration, expected):
    command = project.snakemake_command("-n", "--quiet", "rules", "--configfile", f"config/{configuration}")
    # any attempt to reach a host fails at once
    proxy = "http://127.0.0.1:9"
    done = project.run(sys.executable, "-c", MEASURED, *command, HTTPS_PROXY=proxy, HTTP_PROXY=proxy)
    found = jobs(done.stdout)
    assert {rule: found.get(rule, 0) for rule in expected} == expected
    assert int((project.folder / "peak_kb").read_text()) < 1_000_000
    assert not (project.folder / "results").exists()
    if configuration == "small/small.yaml":  # 8 benchmarks: plain of 8 models, chat of 2; a rate and a seed each
        assert "left: 444 of 444 cells in 66 jobs" in done.stderr.strip().splitlines()[-1]


def test_the_demo_does_not_reach_another_configuration(project):
    """The embedded default is read only when no configuration is named."""
    (project.folder / "mine.yaml").write_text(
        "name: mine\nmodels: config/small/models.tsv\nbenchmarks: config/small/benchmarks.tsv\n"
        "finetuning: { learning_rates: [1e-4] }\n"
    )
    found = jobs(project.run(*project.snakemake_command("-n", "--quiet", "rules", "--configfile", "mine.yaml")).stdout)
    assert "make_world" not in found and found["prefetch_model"] == 8
    demo = jobs(project.run(*project.snakemake_command("-n", "--quiet", "rules")).stdout)
    assert demo["make_world"] == 1


def test_a_model_that_another_rule_made_may_have_several_weight_files(project):
    """A folder under results/<run>/: config.json must be there, model.safetensors only of the miniature's."""
    folder = project.folder / "results/mine/converted/large"
    folder.mkdir(parents=True)
    (project.folder / "models.tsv").write_text("model\tpath\nlarge\tresults/{run}/converted/large\n")
    (project.folder / "benchmarks.tsv").write_text("benchmark\narc_easy\n")
    (project.folder / "mine.yaml").write_text("name: mine\nmodels: models.tsv\nbenchmarks: benchmarks.tsv\n")
    command = project.snakemake_command("prefetch", "-n", "--quiet", "rules", "--configfile", "mine.yaml")
    assert "converted/large/config.json" in project.run(*command, code=1).stdout
    for name in ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (folder / name).touch()
    assert jobs(project.run(*command).stdout)["prefetch_model"] == 1


def test_collection_targets(project):
    targets = ("prefetch", "scores", "agreement", "reports", "partial_reports")
    command = project.snakemake_command(*targets, "-n", "--quiet", "rules", "--configfile", "config/test.yaml")
    found = jobs(project.run(*command).stdout)
    assert [found[target] for target in targets] == [1] * len(targets)


def test_parsing_imports_nothing_heavy(project):
    """Every job on a cluster parses the Snakefile: torch or pandas here would cost seconds thousands of times."""
    code = (
        "import sys\nsys.argv = ['snakemake', *sys.argv[1:]]\nfrom snakemake.cli import main\n"
        "import atexit, json\n"
        "write = lambda: open('imported.json', 'w').write(json.dumps(sorted(sys.modules)))\n"
        "atexit.register(write)\n"
        "main()\n"
    )
    command = project.snakemake_command("--list-rules", "--configfile", "config/paper/train_before_test.yaml")
    project.run(sys.executable, "-c", code, *command[1:])
    imported = json.loads((project.folder / "imported.json").read_text())
    assert not HEAVY & set(imported)
    # Snakemake's plugins import pandas themselves, so what this project's modules import is looked at without them
    ours = [name for name in imported if name.split(".")[0] == "lm_validity"]
    assert "lm_validity.run.workspace" in ours
    code = f"import sys, json, {', '.join(ours)}\nprint(json.dumps(sorted(sys.modules)))"
    found = set(json.loads(project.run(sys.executable, "-c", code).stdout))
    assert not (HEAVY | {"pandas", "numpy", "pyarrow", "huggingface_hub", "requests", "httpx", "snakemake"}) & found


def test_a_mistake_in_the_configuration_is_named(project):
    config = project.folder / "config" / "test.yaml"
    config.write_text(config.read_text().replace("finetuning:", "finetunning:"))
    done = project.run(*project.snakemake_command("-n", "--configfile", "config/test.yaml"), code=1)
    assert "unknown key 'finetunning'. Hint: did you mean 'finetuning'?" in done.stderr + done.stdout
    config.write_text(config.read_text().replace("finetunning:", "finetuning:") + "finetuning: { epochs: 4 }\n")
    done = project.run(*project.snakemake_command("-n", "--configfile", "config/test.yaml"), code=1)
    assert "'finetuning' is there twice" in done.stderr + done.stdout  # Snakemake's own reader takes the last
    sheet = project.folder / "config" / "paper" / "early_training_benchmarks.tsv"
    sheet.write_text(sheet.read_text().replace("arc_easy", "arc_eazy"))
    command = project.snakemake_command("-n", "--configfile", "config/paper/early_training.yaml")
    done = project.run(*command, code=1)
    said = "benchmark arc_eazy (task arc_eazy): no lm-eval task has this name. Hint: did you mean 'arc_easy'?"
    assert said in done.stderr + done.stdout


def test_a_workflow_in_a_folder_with_braces_is_refused_by_its_name(project):
    """Snakemake looked for a variable `y`; blanks, brackets and letters of any language do no harm."""
    place = project.folder / "a [x] {y} ü"
    shutil.copytree(ROOT / "workflow", place / "workflow")
    command = ("snakemake", "--snakefile", str(place / "workflow" / "Snakefile"), "--directory", str(project.folder))
    done = project.run(*command, "-n", "--configfile", "config/test.yaml", code=1)
    assert re.search(r"a \[x\] \{y\} ü/workflow: [^\n]*braces[^\n]* Hint: rename", done.stderr + done.stdout)


def test_a_run_whose_plan_cannot_be_written_does_not_start(project):
    place = project.folder / "results" / "test"
    (place / "configuration.json").mkdir(parents=True)  # stops root too, as a full disk does
    done = project.snakemake("--configfile", "config/test.yaml", code=1)
    assert re.search(r"^results/test: [^\n]+ Hint: [^\n]+$", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr and not list(place.glob(".*"))


def test_the_slurm_profile_is_found_by_name_and_submits(project):
    """`--profile slurm` from the root resolves to the slurm executor, whatever else is installed."""
    assert (ROOT / "slurm").is_symlink() and os.readlink(ROOT / "slurm") == "profiles/slurm"
    code = (
        f"import os\nos.chdir({str(ROOT)!r})\n"
        "from snakemake.cli import get_argument_parser\n"
        "parser = get_argument_parser(['slurm'])\n"
        "print(parser.parse_args(['--profile', 'slurm']).executor)\n"
    )
    done = project.run(BARE_PROGRAM, code, PATH=f"{project.front}/usr/bin:/bin")
    assert done.stdout.strip() == "slurm", done.stderr
    assert not (ROOT / "profiles" / "default").exists()


def test_the_example_of_a_sites_profile_sends_every_rule_with_a_gpu_to_the_gpu_partition():
    asking = set()
    for path in (ROOT / "workflow/rules").glob("*.smk"):
        blocks = re.split(r"^rule (\w+):$", path.read_text(), flags=re.MULTILINE)
        asking |= {
            name for name, body in zip(blocks[1::2], blocks[2::2], strict=True) if re.search(r"^ +gpu=", body, re.M)
        }
    profile = yaml.safe_load((ROOT / "profiles/slurm-example-site/config.yaml").read_text())
    assert {rule: own["slurm_partition"] for rule, own in profile["set-resources"].items()} == dict.fromkeys(
        asking, "gpu"
    )
    page = (ROOT / "docs/how_to/cluster.md").read_text()
    guide = page.partition("## Asking for GPUs")[2].partition("set-resources:")[0]
    assert asking and all(f"`{rule}`" in guide for rule in asking)
