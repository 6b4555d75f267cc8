"""The store: finished cells are whole or absent, and damage is found."""

import shutil

import pytest

from lm_validity.errors import InputError
from lm_validity.run.cell import BenchmarkCell, derive_seed, recipe_hash
from lm_validity.run.store import Store, check_read
from lm_validity.run.workspace import Entry, read_manifest, write_manifest

CELL = BenchmarkCell("evaluate_model", "m", "x", "final", "plain", split="test")


def commit(store, address, text="items"):
    write = lambda folder: (folder / "items.txt").write_text(text)  # noqa: E731
    store.commit(address, {"value": 0.5}, {"seconds": 1}, write)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def address(store):
    return store.address(CELL, {"a": 1})


def test_a_committed_cell_is_found_and_whole(store, address):
    assert not store.has(address)
    commit(store, address)
    assert store.has(address) and store.damage(address.folder) is None
    assert store.read(address)["result"] == {"value": 0.5} and store.read(address)["recipe"] == {"a": 1}
    assert list(store.folders()) == [address.folder]
    assert check_read(store, address.folder, "items.txt").read_text() == "items"


def test_the_first_of_two_writers_stays(store, address):
    commit(store, address, "first")
    commit(store, address, "second")
    assert (store.path(address) / "items.txt").read_text() == "first"


def test_a_writer_that_dies_leaves_nothing(store, address):
    def die(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.commit(address, {}, {}, die)
    assert not store.has(address)
    assert [path.name for path in store.path(address).parent.iterdir()] == []


DAMAGE = {
    "delete file": lambda folder: (folder / "items.txt").unlink(),
    "change byte": lambda folder: (folder / "items.txt").write_text("itemz"),
    "delete index": lambda folder: (folder / "sha256.json").unlink(),
    "empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
    "delete folder": shutil.rmtree,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_found_and_mended(store, address, how):
    commit(store, address)
    DAMAGE[how](store.path(address))
    assert store.damage(address.folder)
    with pytest.raises(InputError, match="sha256 differs"):
        check_read(store, address.folder, "items.txt")
    store.remove(address.folder)
    commit(store, address)
    assert store.damage(address.folder) is None


def test_recipes_and_seeds_are_stable():
    assert recipe_hash({"b": 1, "a": [1, 2]}) == recipe_hash({"a": [1, 2], "b": 1})
    assert recipe_hash({"a": 1}) != recipe_hash({"a": 2})
    assert recipe_hash({"a": 1}) == "015abd7f5cc5"  # sha256 of {"a":1}: folders of older runs keep their names
    assert derive_seed("m", 0) == derive_seed("m", "0") != derive_seed("m", 1)
    assert 0 <= derive_seed("x") < 2**63


def test_manifests_keep_their_entries(tmp_path):
    entries = [
        Entry(CELL, "done", folder="f"),
        Entry(CELL._replace(benchmark="y"), "failed", error="NaN", hint="look"),
        Entry(BenchmarkCell("select_adapter", "m", "x", seed=0), "done", content={"prompt": "plain"}),
    ]
    write_manifest(tmp_path / "m.json", entries)
    assert read_manifest(tmp_path / "m.json") == entries
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(InputError, match="not a readable manifest"):
        read_manifest(tmp_path / "m.json")
