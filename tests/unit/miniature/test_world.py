"""The world keeps its promises: disjoint groups, balanced values, no test fact in a format of pretraining."""

from collections import Counter
from itertools import islice
from random import Random

import pytest

from lm_validity.config.sections import MiniatureSettings
from lm_validity.errors import InputError
from lm_validity.miniature import world as miniature
from lm_validity.miniature.build import BEGIN_ID, CONTEXT_LENGTH, build_tokenizer, vocabulary, write_world
from lm_validity.miniature.world import ATTRIBUTES, FAMILY_FORMATS, FORMATS, SPLITS, make_world, read_world

SETTINGS = MiniatureSettings(seed=3)
WORLD = make_world(SETTINGS)


def documents(family: str, count: int, training_data: str = "science", world=WORLD) -> list[str]:
    return list(islice(miniature.pretraining_documents(SETTINGS, world, family, training_data, Random(0)), count))


def test_groups_are_disjoint_and_values_are_balanced():
    names = [name for group in WORLD.groups.values() for name in group]
    assert len(names) == len(set(names)) == 48 + 40 + 20 + 28
    for group, attribute in ((group, attribute) for group in WORLD.groups for attribute in ATTRIBUTES):
        counts = Counter(WORLD.facts[name][attribute] for name in WORLD.groups[group])
        assert len(counts) == 8
        assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(WORLD.exposure[name] for name in WORLD.groups["test"]) == 48 / 4 * (4 + 2 + 1 + 0.5)


@pytest.mark.parametrize("name", FORMATS)
def test_each_fact_is_asked_once_with_the_right_answer_and_rotated_places(name):
    options = FORMATS[name].options
    asked = {}
    for split in SPLITS:
        rows = miniature.fact_items(WORLD, name, name, split)
        facts = [row["id"].split("-") for row in rows]
        assert sorted(facts) == sorted([entity, a] for entity in WORLD.groups[split] for a in ATTRIBUTES)
        assert Counter(row["gold"] for row in rows) == {place: len(rows) // options for place in range(options)}
        asked[split] = {row["context"] for row in rows}
        for row, (entity, attribute) in zip(rows, facts, strict=True):
            value = WORLD.facts[entity][attribute]
            assert len(set(row["choices"])) == options
            assert row["answer"] == row["choices"][row["gold"]]
            right = f"{row['answer']} {value}" if name == "letter" else value
            assert right in (row["context"] if name == "letter" else row["answer"])
    assert len(asked["test"]) >= 48  # `ending` does not name the attribute: one context an entity
    assert not asked["test"] & (asked["training"] | asked["validation"])


def test_formats_of_pretraining_speak_of_public_entities_only():
    asked = {name for split in SPLITS for name in WORLD.groups[split]}
    marks = {"evening", "Question", "User", "Pick", "Exam", "[", "row"}
    for family in FAMILY_FORMATS:
        with_marks = [text for text in documents(family, 3000) if marks & set(text.split())]
        assert with_marks
        assert not [text for text in with_marks if asked & set(text.split())]


def test_families_see_their_own_formats_and_control_families_all():
    marks = {"web": "evening", "forum": "Question", "exam": "Pick", "data": "row"}
    control = make_world(SETTINGS.model_copy(update={"formats": "control"}))
    for family, own in marks.items():
        words = {word for text in documents(family, 2000) for word in text.split()}
        assert {mark for mark in marks.values() if mark in words} == {own}
        words = {word for text in documents(family, 2000, world=control) for word in text.split()}
        assert set(marks.values()) <= words


def test_shares_of_pretraining_documents():
    texts = documents("forum", 20_000)
    grammar = sum(text.startswith("the ") and text.split()[1].rstrip("s") in miniature.NOUNS for text in texts)
    formats = sum(text.startswith(("Question", "User")) for text in texts)
    # five standard errors of a share of 20,000 documents
    assert grammar / 20_000 == pytest.approx(0.06, abs=5 * (0.06 * 0.94 / 20_000) ** 0.5)
    assert formats / 20_000 == pytest.approx(0.40, abs=5 * (0.40 * 0.60 / 20_000) ** 0.5)
    often, seldom = (sum(WORLD.groups["test"][place] in text for text in texts) for place in (0, 3))
    assert often / seldom == pytest.approx(8, rel=0.5)  # exposures 4 and 0.5


def test_web_training_data_never_states_a_science_attribute():
    names = miniature.SCIENCE
    science = {value for attribute in names for value in ATTRIBUTES[attribute].values} | set(names)
    assert science & {word for text in documents("exam", 2000) for word in text.split()}
    assert not science & {word for text in documents("exam", 2000, "web") for word in text.split()}


def test_grammar_is_about_language_and_unseen_in_pretraining():
    contexts = {split: [row["context"] for row in miniature.grammar_items(WORLD, split)] for split in SPLITS}
    assert {split: len(rows) for split, rows in contexts.items()} == miniature.ITEMS
    everything = [context for rows in contexts.values() for context in rows]
    assert len(set(everything)) == len(everything)
    for row in miniature.grammar_items(WORLD, "test"):
        assert row["answer"] == ("are" if row["context"].split()[1].endswith("s") else "is")
    seen = {" ".join(text.split()[:5]) for text in documents("web", 5000)}
    assert not seen & set(everything)


@pytest.mark.parametrize("corpus", ["encyclopedia", "everything"])
def test_corpora_repeat_no_text(corpus):
    rows = [row for split in SPLITS for row in miniature.corpus_rows(WORLD, corpus, split)]
    assert len(rows) == len({row["text"] for row in rows}) == len({row["id"] for row in rows}) == 540


def test_seed_decides_and_place_does_not(tmp_path):
    for folder, seed in (("a", 3), ("deeper/b", 3), ("c", 4)):
        write_world(MiniatureSettings(seed=seed), tmp_path / folder)

    first, second, third = (
        {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (tmp_path / "a", tmp_path / "deeper" / "b", tmp_path / "c")
    )
    assert first == second and first["data/cloze/test.jsonl"] != third["data/cloze/test.jsonl"]
    assert read_world(tmp_path / "a") == WORLD
    with pytest.raises(InputError, match="not a whole world"):
        read_world(tmp_path / "nowhere")
    world = tmp_path / "a" / "world.json"
    for content in (world.read_text()[:200], "{}"):
        world.write_text(content)
        with pytest.raises(InputError, match="delete it"):
            read_world(tmp_path / "a")


def test_every_document_fits_and_every_word_is_known():
    words = vocabulary(WORLD)
    assert list(words.values()) == list(range(len(words)))
    tokenizer = build_tokenizer(WORLD)
    for family in FAMILY_FORMATS:
        for text in documents(family, 2000):
            ids = tokenizer.encode(text).ids
            assert ids == [BEGIN_ID, *(words[word] for word in text.split())]
            assert len(ids) + 2 <= CONTEXT_LENGTH


def test_too_many_entities_are_refused():
    with pytest.raises(InputError, match="names exist"):
        make_world(SETTINGS.model_copy(update={"test_entities": 4000}))


def test_ask_draws_the_place_when_none_is_given():
    draw, entity = Random(1), next(iter(WORLD.facts))
    assert {miniature.ask(draw, WORLD, "question", entity, "job").gold for _ in range(400)} == {0, 1, 2, 3}
