"""Models and tasks that are not from the miniature world go through by editing only the sheets (README).

Made by hand in hub format: two architectures the miniature does not have, a byte-level tokenizer, and the task of
docs/how_to/own_models_and_benchmarks.md over local JSON lines.
"""

import json
import random
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.unit.test_documents import block
from tests.workflow.conftest import Project

transformers = pytest.importorskip("transformers")

# without a validation split, for which a fifth of train is taken
TASK = re.sub(r"^ *validation.*\n", "", block("# my_tasks/capitals.yaml"), flags=re.MULTILINE)


def write_task(folder: Path) -> list[str]:
    """Sixty made-up countries; their sentences."""
    draw = random.Random(1)
    word = lambda: "".join(draw.choice(["ka", "lo", "mi", "ran", "tu", "ves"]) for _ in range(3)).capitalize()  # noqa: E731
    rows = [{"country": word() + "ia", "capital": word()} for _ in range(60)]
    capitals = [row["capital"] for row in rows]
    for row in rows:
        row["options"] = draw.sample([row["capital"], *draw.sample([c for c in capitals if c != row["capital"]], 3)], 4)
    folder.mkdir()
    (folder / "capitals.yaml").write_text(TASK)
    for name, part in (("train", rows[:40]), ("test", rows[40:])):
        (folder / f"capitals_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return [f"Question: What is the capital of {row['country']}?\nAnswer: {row['capital']}" for row in rows]


def write_letters(folder: Path) -> None:
    """A folder of forty texts, longer than the models' windows."""
    draw = random.Random(2)
    folder.mkdir()
    for number in range(40):
        words = [draw.choice(["kalo", "miran", "tuves", "lotu", "ranka"]) for _ in range(120)]
        (folder / f"letter_{number}.txt").write_text(" ".join(words) + ".\n")


def write_models(folder: Path, texts: list[str]) -> None:
    """A GPT-NeoX and a Qwen2 with random weights and a byte-level BPE tokenizer, as save_pretrained writes them."""
    import tokenizers
    import torch

    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=400, special_tokens=["<|end|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<|end|>")
    small = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    configs = {
        "neox": transformers.GPTNeoXConfig(**small, intermediate_size=64, max_position_embeddings=128),
        "qwen": transformers.Qwen2Config(**small, intermediate_size=64, num_key_value_heads=1),
    }
    for name, config in configs.items():
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = transformers.AutoModelForCausalLM.from_config(config)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    project = Project(tmp_path_factory.mktemp("own"))
    models = project.folder / "my_models"
    write_models(models, write_task(project.folder / "my_tasks"))
    shutil.copytree(models / "neox", models / "bin")
    (models / "bin/model.safetensors").rename(models / "bin/pytorch_model.bin")
    (project.folder / "my_models.tsv").write_text(
        "model\tpath\tfamily\tparameters_b\tsize_class\tdtype\n"
        "my-neox\tmy_models/neox\tNeoX\t0.00005\tminiature\tfloat32\n"
        "my-qwen\tmy_models/qwen\tQwen\t0.00005\tminiature\tfloat32\n"
    )
    (project.folder / "my_benchmarks.tsv").write_text(
        "benchmark\ttask\tinclude_path\tcategory\tmetric\toutput_type\thigher_is_better\tcorpus\n"
        "capitals\tcapitals\tmy_tasks\tQA\tacc,none\tmultiple_choice\t1\t\n"
        "letters\t\t\t\t\t\t\tmy_texts\n"
    )
    write_letters(project.folder / "my_texts")
    (project.folder / "my.yaml").write_text(
        "name: mine\nstudies: [agreement]\nmodels: my_models.tsv\nbenchmarks: my_benchmarks.tsv\n"
        "finetuning: {learning_rates: [1e-3], epochs: 2}\n"
    )
    return project


def test_own_models_and_task_go_through(project):
    project.snakemake("scores", "--configfile", "my.yaml")
    scores = pd.read_parquet(project.folder / "results/mine/tables/scores.parquet")
    rows = scores[(scores.split == "test") & (scores.metric == "acc,none")]
    assert sorted(zip(rows.model, rows.protocol, rows.n_items, strict=True)) == [
        (model, protocol, 20) for model in ("my-neox", "my-qwen") for protocol in ("direct", "train_before_test")
    ]
    # no validation split in the task: a fifth of train became one
    split = json.loads((project.folder / "results/mine/splits/capitals/validation.json").read_text())
    assert split["documents"] == 8 and all(address.startswith("train:") for address in split["addresses"])


def test_own_texts_are_a_benchmark_of_bits_per_byte(project):
    """Forty files: 32 to train on, 4 for validation, 4 for test; lower is better, as the selection shows."""
    folder = project.folder / "results/mine"
    splits = [
        json.loads((folder / f"splits/letters/{name}.json").read_text()) for name in ("train", "validation", "test")
    ]
    assert [split["documents"] for split in splits] == [32, 4, 4]
    assert len({address for split in splits for address in split["addresses"]}) == 40
    scores = pd.read_parquet(folder / "tables/scores.parquet")
    rows = scores[(scores.benchmark == "letters") & (scores.split == "test") & (scores.metric == "bits_per_byte,none")]
    assert (~rows.higher_is_better.astype(bool)).all() and (rows.n_items == 4).all()
    value = rows.set_index(["model", "protocol"])["value"]
    for model in ("my-neox", "my-qwen"):
        assert value[model, "train_before_test"] < value[model, "direct"]
    selections = pd.read_parquet(folder / "tables/selections.parquet")
    chosen = selections[(selections.benchmark == "letters") & selections.selected]
    assert (chosen.validation_value < chosen.direct_validation_value).all()


@pytest.mark.parametrize(
    ("file", "old", "new", "command", "problem"),
    [
        ("my_benchmarks.tsv", "\tcapitals\tmy", "\tcapital\tmy", "prefetch-benchmark --benchmark capitals",
         "capital: no lm-eval task has this name. Hint: did you mean 'capitals'?"),
        ("my_benchmarks.tsv", "acc,none", "acc_norm,none", "prefetch-benchmark --benchmark capitals",
         "lm-eval has no metric 'acc_norm,none' for it"),
        ("my_tasks/capitals.yaml", "{{country}}", "{{land.name}}", "split-benchmark --benchmark capitals", "capitals"),
        ("my_models.tsv", "my_models/neox", "my_models/none", "prefetch-model --model my-neox", "my_models/none"),
        ("my_models.tsv", "my_models/neox", "my_models/bin", "prefetch-model --model my-neox", "no *.safetensors"),
        ("my_models.tsv", "my-neox", "my-neox", "prefetch-model --model my-nox", "did you mean 'my-neox'?"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_a_hint(project, file, old, new, command, problem):
    path = project.folder / file
    good = path.read_text()
    try:
        path.write_text(good.replace(old, new))
        if command.startswith("split"):
            project.lm_validity("prefetch-benchmark", "--benchmark", "capitals", "--configfile", "my.yaml", code=None)
        done = project.lm_validity(*command.split(), "--configfile", "my.yaml", code=2)
    finally:
        path.write_text(good)
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and "Hint: " in errors[0] and problem in errors[0]
