"""What a finished run leaves for others: adapters that plain PEFT loads, and scores of every seed."""

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.workflow.warm_programs import BARE_PROGRAM

from lm_validity.results.put import Rows

CONFIG = ("--configfile", "config/test.yaml")
RESULTS = Path("results/test")

# Nothing of this project: the base model, the adapter and the documents as files, transformers and PEFT
PLAIN_PEFT = """
import json, sys
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def share_right(base, adapter, documents):
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
    tokenizer = AutoTokenizer.from_pretrained(base)
    hits, rows = 0, [json.loads(line) for line in open(documents, encoding="utf-8")]
    for row in rows:
        context = tokenizer(row["context"])["input_ids"]
        with torch.no_grad():
            if documents.endswith("table/validation.jsonl"):  # generated, one word
                best = model(torch.tensor([context])).logits[0, -1].argmax().item()
                hits += tokenizer.decode([best]) == row["answer"]
                continue
            scores = []
            for choice in row["choices"]:
                tokens = tokenizer(choice, add_special_tokens=False)["input_ids"]
                logits = model(torch.tensor([context + tokens])).logits[0].log_softmax(-1)
                scores.append(sum(logits[len(context) + i - 1, token].item() for i, token in enumerate(tokens)))
        hits += scores.index(max(scores)) == row["gold"]
    return hits / len(rows)


print(json.dumps([share_right(*files) for files in json.loads(sys.argv[1])]))
assert not any(name.startswith(("lm_validity", "lm_eval")) for name in sys.modules)
"""


def test_adapters_in_plain_peft_give_the_recorded_validation_scores(finished):
    recorded, files = [], []
    for model, benchmark in (("forum-llama-xs", "cloze"), ("data-gpt2-xs", "table")):
        store = finished.folder / RESULTS / "store/finetune_adapter" / model
        (cell,) = store.glob(f"{benchmark}.plain.lr3e-3.seed0--*")
        recorded.append(json.loads((cell / "cell.json").read_text())["result"]["best_value"])
        split = json.loads((finished.folder / RESULTS / f"splits/{benchmark}/validation.json").read_text())
        documents = finished.folder / RESULTS / f"miniature/data/{benchmark}/validation.jsonl"
        assert split["documents"] == len(documents.read_text().splitlines()) == 100
        base = finished.folder / RESULTS / "miniature/models" / model
        files.append([str(base), str(cell / "adapter"), str(documents)])
    done = finished.run(BARE_PROGRAM, PLAIN_PEFT, json.dumps(files))
    assert json.loads(done.stdout) == pytest.approx(recorded, abs=1e-12)
    assert min(recorded) > 0


def test_two_adapters_of_a_base_are_scored_as_models_of_their_own(finished, tmp_path):
    """Rows of the models sheet, with adapters that the run trained. The base's own cells are found in the store."""
    project = finished.copy_to(tmp_path / "copy")
    before, sheet = project.sidecars(), project.folder / "config/test_models.tsv"
    rows = [line.split("\t") for line in sheet.read_text().splitlines()]
    (base,) = (dict(zip(rows[0], row, strict=True)) for row in rows if row[0] == "forum-llama-xs")
    (one,) = (project.folder / RESULTS / "store/finetune_adapter/forum-llama-xs").glob("cloze.plain.lr3e-3.seed0--*")
    (two,) = (project.folder / RESULTS / "store/finetune_adapter/forum-llama-xs").glob("table.plain.lr3e-3.seed0--*")
    lines = ["\t".join([*rows[0], "adapter"]), *("\t".join([*row, ""]) for row in rows[1:])]
    for name, cell in (("one", one), ("two", two)):
        lines.append("\t".join([*(base | {"model": name}).values(), str(cell / "adapter")]))
    sheet.write_text("\n".join([*lines, ""]))
    names = ("forum-llama-xs", "one", "two")
    manifests = [RESULTS / f"cells/evaluate_model/{name}/all-benchmarks.final.plain.test.json" for name in names]
    project.snakemake(*map(str, manifests), *CONFIG)
    cells = [cell for path in manifests for cell in json.loads((project.folder / path).read_text())["cells"]]
    assert [entry["status"] for entry in cells] == ["done"] * 6
    assert list(dict.fromkeys(entry["cell"]["model"] for entry in cells)) == [*names]
    after = project.sidecars()
    assert before.items() <= after.items() and len(after) == len(before) + 8
    assert len({entry["sha256"] for entry in cells}) == 6, "no adapter has the scores of another, or of the base"


def test_every_seed_comes_through_to_the_tables(finished, tmp_path):
    """A second seed computes its own fine-tunes and nothing else; the first one's rows stay as they were. Of one
    model."""
    project = finished.copy_to(tmp_path / "copy")
    before = project.sidecars()
    first = pd.read_parquet(project.folder / RESULTS / "tables/scores.parquet")
    first = first[first.model == "forum-llama-xs"].reset_index(drop=True)
    project.keep("forum-llama-xs")
    config = project.folder / "config/test.yaml"
    config.write_text(config.read_text().replace("epochs: 3", "epochs: 3, seeds: [0, 1]"))
    project.snakemake(str(RESULTS / "tables/scores.parquet"), *CONFIG)
    new = {cell for cell in project.sidecars() if cell not in before}
    assert len([cell for cell in new if cell.startswith("finetune_adapter")]) == 4
    assert all(".seed1--" in cell for cell in new)
    scores = pd.read_parquet(project.folder / RESULTS / "tables/scores.parquet")
    trained = scores[(scores.protocol == "train_before_test") & (scores.metric.isin(["acc,none", "exact_match,none"]))]
    assert trained.groupby(["model", "benchmark"]).seed.agg(set).map(lambda seeds: seeds == {0, 1}).all()
    assert trained.groupby("seed").size().to_dict() == {0: 2, 1: 2}
    pd.testing.assert_frame_equal(
        scores[scores.seed.isna() | (scores.seed == 0)].reset_index(drop=True), first, check_dtype=False
    )
    selections = pd.read_parquet(project.folder / RESULTS / "tables/selections.parquet")
    assert selections.groupby("seed").size().to_dict() == {0: 6, 1: 6}


def test_screening_says_why_each_benchmark_leaves(finished, tmp_path):
    """The miniature has 200 training documents a benchmark: too few by the published threshold, enough by another."""
    project = finished.copy_to(tmp_path / "copy")
    results = project.folder / RESULTS / "reports/screening/results.parquet"
    project.snakemake("screening", *CONFIG)
    reasons = {row.subject: row.text for row in Rows.read(results).all("dropped_because")}
    assert reasons == dict.fromkeys(("cloze", "table"), "200 training examples, fewer than 1000")
    config = project.folder / "config/test.yaml"
    config.write_text(config.read_text() + "screening: { training_examples: 100, unimproved_share: 1 }\n")
    project.snakemake("screening", *CONFIG)
    assert all("training examples" not in row.text for row in Rows.read(results).all("dropped_because"))
