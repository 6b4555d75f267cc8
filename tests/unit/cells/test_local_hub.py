"""Prefetch against a hub on this machine, with the real clients: what was fetched is found again without the hub."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_client import find_all
from local_hub import COMMIT
from peft import LoraConfig, get_peft_model
from toy_world import toy_model
from transformers import AutoModelForCausalLM

ROWS = {"text": ["awful", "fine", "good"], "label": [0, 1, 1]}
TASK = """
task: hub_choice
dataset_path: org/questions
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["no", "yes"]
doc_to_target: answer
metric_list: [{metric: acc}]
"""


def fill(folder: Path) -> None:
    """A hub with repositories of models, an adapter and data; beside it a task, and the adapter's base."""
    hub = folder / "hub"
    toy_model("llama", hub / "models/org/toy")
    (hub / "models/org/toy/pytorch_model.bin").write_bytes(b"never fetched")
    (hub / "models/org/toy/README.md").write_text("# toy\n")
    base = toy_model("llama", folder / "base")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(hub / "models/org/adapter")
    for name in ("texts", "questions"):
        (hub / "datasets/org" / name / "data").mkdir(parents=True)
    pq.write_table(pa.table(ROWS), hub / "datasets/org/texts/data/train-00000-of-00001.parquet")
    questions = pa.table({"question": ["is it so?"] * 4, "answer": [0, 1, 1, 0]})
    pq.write_table(questions, hub / "datasets/org/questions/data/test-00000-of-00001.parquet")
    (folder / "tasks").mkdir()
    (folder / "tasks/hub_choice.yaml").write_text(TASK)


@pytest.fixture(scope="module")
def found(tmp_path_factory, early_fork):
    """What a client finds: with the hub, offline, and where the hub is out of reach."""
    folder = tmp_path_factory.mktemp("hub")
    fill(folder)
    found = early_fork.call(find_all, folder)
    shutil.rmtree(folder / "home", ignore_errors=True)
    (folder / "elsewhere").rename(folder / "home")
    return found


SNAPSHOT = f"snapshots/{COMMIT}"


@pytest.mark.parametrize("where", ["online", "offline"])
def test_what_was_fetched_is_found_again(found, where):
    """Without a revision, by a name and by the commit; of an adapter, a task and data sets too."""
    of = found[where]
    for step in ("model", "model by name", "model by commit"):
        assert of[step]["path"].endswith(f"models--org--toy/{SNAPSHOT}"), of[step]
        assert of[step]["revision"] == of[step]["digest"] == COMMIT
    assert of["adapter"]["adapter"]["path"].endswith(f"models--org--adapter/{SNAPSHOT}")
    assert of["task"] == found["online"]["task"] and of["task"]["test"] == 4
    for step in ("texts", "texts by name", "texts in files", "texts converted"):
        assert of[step][:2] == [ROWS["text"], ROWS["label"]], of[step]
        assert of[step][2] == COMMIT
    files = {path.name for path in Path(of["model"]["path"]).iterdir()}
    assert "model.safetensors" in files and not files & {"pytorch_model.bin", "README.md"}


def test_what_was_never_fetched_is_one_line(found):
    for step, value in found["nothing fetched"].items():
        assert value.startswith("InputError: ") and ("cache" in value or "without network" in value), (step, value)
    online, offline = found["online"], found["offline"]
    assert "no such revision" in online["model of another name"] and "`revision`" in online["model of another name"]
    assert "not in the local cache" in offline["model of another name"]
    assert COMMIT in offline["texts of another commit"] and "InputError" in offline["texts of another commit"]
    for where in (online, offline):
        assert "org/nobody" in where["unknown model"] and "org/none" in where["unknown texts"]


def test_where_the_hub_is_out_of_reach_the_cache_is_looked_into(found):
    assert found["out of reach"]["model"] == found["online"]["model"]
    assert found["out of reach"]["texts in files"] == found["online"]["texts in files"]
