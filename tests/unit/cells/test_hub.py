"""Fetching from the hub: room, resuming, access, no token anywhere; and real clients against a hub on this machine."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from hub_client import COMMIT, find_all
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from peft import LoraConfig, get_peft_model
from safetensors.numpy import save
from toy_world import toy_model, word_tokenizer
from transformers import AutoModelForCausalLM

from lm_validity.cells.models.prefetch import access_problems, prefetch_model
from lm_validity.config.sheets import FINAL, Checkpoint, HubModel, Model
from lm_validity.errors import InputError

SHA = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_thisIsNobodysToken"


def weights(size: int, name: str = "weight") -> bytes:
    """A whole safetensors file."""
    return save({name: np.zeros(size, np.uint8)})


FILES = {
    "config.json": b'{"model_type": "llama", "architectures": ["Toy"]}',
    "model.safetensors": weights(7000),
    "tokenizer.json": word_tokenizer(["yes"]).backend_tokenizer.to_str().encode(),
}
MODEL = Model(model="toy", path="org/toy")


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


class Hub:
    """What huggingface_hub is asked for, served from memory."""

    def __init__(self, cache: Path):
        self.cache, self.error, self.downloads = cache, None, []
        self.files, self.asked = dict(FILES), []

    def auth_check(self, path):
        if self.error:
            raise self.error

    def snapshot_download(self, path, revision=None, dry_run=False, local_files_only=False, **patterns):
        self.asked.append((path, revision))
        if self.error:
            raise self.error
        names = [*huggingface_hub.utils.filter_repo_objects(self.files, **patterns)]
        new = [name for name in names if not (self.cache / SHA / name).is_file()]
        if dry_run:
            return [SimpleNamespace(file_size=len(self.files[name]), will_download=name in new) for name in names]
        for name in new:
            put(self.cache / SHA / name, self.files[name])
        self.downloads += new
        return str(self.cache / SHA)


def refusal(kind):
    response = requests.Response()
    response.status_code = 403
    response.request = requests.Request("GET", "https://huggingface.co/api", headers={"authorization": TOKEN}).prepare()
    return kind("403 Client Error", response=response)


def unreachable() -> Exception:
    """What the hub's client raises without a network, whichever HTTP library it uses: nobody listens there."""
    with pytest.raises(Exception, match=r"refused|Connect") as raised:
        huggingface_hub.utils.get_session().get("http://127.0.0.1:9/")
    return raised.value


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    hub = Hub(tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub.cache))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def free(monkeypatch, number: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=number))


def adapter_files(**settings) -> dict[str, bytes]:
    settings |= {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 1, "target_modules": ["q_proj"]}
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{layer}.lora_A.weight": np.zeros((1, 4096)), f"{layer}.lora_B.weight": np.zeros((4096, 1))}
    return {
        "adapter_config.json": json.dumps(settings | {"layers_to_transform": [0]}).encode(),
        "adapter_model.safetensors": save(tensors),
    }


@pytest.mark.parametrize(("trained_on", "said"), [("step1000", True), ("main", False), (None, False)])
def test_an_adapter_of_another_revision_of_its_base_is_said(trained_on, said, hub, tmp_path, caplog):
    for name, content in adapter_files(revision=trained_on).items():
        (tmp_path / name).write_bytes(content)
    prefetch_model(MODEL.model_copy(update={"adapter": str(tmp_path)}))
    assert ("step1000" in caplog.text) == said


def test_an_adapter_comes_from_the_hub_at_its_own_revision(hub, tmp_path):
    """On a base model in a folder: both digests are the model's."""
    base = tmp_path / "base"
    for name, content in FILES.items():
        put(base / name, content)
    hub.files = {**adapter_files(), "training/state.json": b"{}"}
    final = prefetch_model(Model(model="toy", path=str(base), adapter="me/lora@v2"))["checkpoints"]["final"]
    assert hub.asked == [("me/lora", "v2")] and hub.downloads == ["adapter_config.json", "adapter_model.safetensors"]
    assert final["adapter"] == {"path": str(hub.cache / SHA), "revision": SHA, "digest": SHA}
    alone = prefetch_model(Model(model="toy", path=str(base)))["checkpoints"]["final"]
    assert final["digest"] == f"{alone['digest']}+{SHA}" and "adapter" not in alone


def test_only_the_folders_of_the_checkpoints_listed_are_fetched(hub, monkeypatch):
    """Three of nine subfolders; names are taken as they are, also those that look like a pattern. Preflight counts
    the bytes that are missing."""
    folders = ["step[1]", "step1", *(f"step{number}" for number in range(2, 9))]
    of_each = {"config.json": FILES["config.json"], "model.safetensors": weights(1000), "optimizer.pt": b"o" * 1000}
    hub.files |= {f"{folder}/{name}": content for folder in folders for name, content in of_each.items()}
    hub.files |= {"onnx/config.json": b"{}", "step2/deep/model.safetensors": b"w" * 1000}
    listed = ("step[1]", "step2", "step5")
    points = tuple(Checkpoint(checkpoint=f"at-{at}", subfolder=folder) for at, folder in enumerate(listed))
    model = Model(model="toy", path="org/toy", checkpoints=(*points, FINAL))
    wanted = [*FILES, *(f"{folder}/{name}" for folder in listed for name in ("config.json", "model.safetensors"))]
    needed = sum(len(hub.files[name]) for name in wanted)
    row = HubModel(model.path, model.revision, model.folders)
    free(monkeypatch, needed - 1)
    (problem,) = access_problems({"model toy": row})
    assert "0 GB of models to download, 0 GB free" in str(problem) and "HF_HOME" in str(problem)
    free(monkeypatch, needed)
    assert access_problems({"model toy": row}) == []
    record = prefetch_model(model)
    assert sorted(hub.downloads) == sorted(wanted)
    final = record["checkpoints"]["final"]
    assert final["revision"] == final["digest"] == SHA and TOKEN not in repr(record)
    assert record["checkpoints"]["at-0"]["digest"] == f"{SHA}/step[1]"


def test_weights_that_are_there_twice_are_fetched_once(hub, monkeypatch):
    """Shards beside consolidated.safetensors, as Mistral has them; and a download that was interrupted goes on."""
    del hub.files["model.safetensors"]
    shards = {f"model-0000{number}-of-00002.safetensors": weights(2000, f"half{number}") for number in (1, 2)}
    index = json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}).encode()
    hub.files |= shards | {"model.safetensors.index.json": index, "consolidated.safetensors": b"again" * 1000}
    put(hub.cache / SHA / "config.json", FILES["config.json"])
    wanted = {*hub.files} - {"consolidated.safetensors", "config.json"}
    free(monkeypatch, sum(len(hub.files[name]) for name in wanted))
    assert access_problems({"model toy": HubModel(MODEL.path)}) == []
    prefetch_model(MODEL)
    assert {*hub.downloads} == wanted


@pytest.mark.parametrize(
    ("error", "words", "by_preflight"),
    [
        (lambda: refusal(GatedRepoError), "gated, and this account has no access", True),
        (lambda: refusal(RepositoryNotFoundError), "no such repository", True),
        (lambda: HFValidationError("Repo id must be 'owner/name'"), "neither a folder here nor a hub id", True),
        (lambda: LocalEntryNotFoundError("nothing"), "not in the local cache, and the hub is out of reach", False),
        (unreachable, "download failed", False),
    ],
    ids=["gated", "unknown", "a folder that is not there", "offline", "no network"],
)
def test_refusals_say_what_to_do_and_hold_no_token(hub, error, words, by_preflight):
    """Without a network preflight says nothing: nothing is known."""
    hub.error = error()
    with pytest.raises(InputError, match=words) as found:
        prefetch_model(MODEL)
    said = [str(problem) for problem in access_problems({"model toy": HubModel("org/toy")})]
    assert [words in line and line.startswith("model toy (org/toy): ") for line in said] == [True] * by_preflight
    assert TOKEN not in f"{found.value} {said}"


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
    for step in ("model", "texts in files"):  # where the hub is out of reach, the cache is looked into
        assert found["out of reach"][step] == found["online"][step]
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
