"""The miniature world: entities in disjoint groups, their facts, and how often pretraining states them.

By construction: entities that benchmarks ask about occur in pretraining as prose only, in every family at
the same expected rate; the families' question formats speak of `public` entities, which no benchmark asks
about. So no model has seen a test fact in a benchmark's format, and validation is drawn like test.
"""

import hashlib
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lm_validity.config.miniature import MiniatureSettings
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.miniature.language import ATTRIBUTES, FAMILY_FORMATS, FORMATS, SYLLABLES

SPLITS = ("training", "validation", "test")
EXPOSURE = (4.0, 2.0, 1.0, 0.5)  # relative frequency in prose, by turns within each group


@dataclass(frozen=True)
class World:
    """Entities by group, `facts[entity][attribute]` = value, `exposure[entity]` = frequency in prose."""

    seed: int
    formats: str
    test_facts: str
    groups: dict[str, list[str]]
    facts: dict[str, dict[str, str]]
    exposure: dict[str, float]

    @property
    def entities(self) -> list[str]:
        """The names of all entities, group by group."""
        return list(self.facts)

    def family_formats(self, family: str) -> tuple[str, ...]:
        """Formats in the family's pretraining; in a control world every family has those of all."""
        if self.formats == "control":
            return tuple(name for names in FAMILY_FORMATS.values() for name in names)
        return FAMILY_FORMATS[family]

    def asked_entities(self, question_format: str, split: str) -> list[str]:
        """Entities a benchmark of this format asks about in `split` (training, validation or test).

        With disjoint test facts the asked entities stand in a ring; each format's test entities are a
        stretch of its own, its training and validation entities the stretches that follow. A fact that one
        benchmark tests may then be trained on in another, never in the same.
        """
        if self.test_facts == "shared":
            return self.groups[split]
        ring = [entity for name in SPLITS for entity in self.groups[name]]
        position, formats = list(FORMATS).index(question_format), len(FORMATS)
        start, end = position * len(ring) // formats, (position + 1) * len(ring) // formats
        training, validation = len(self.groups["training"]), len(self.groups["validation"])
        bounds = {
            "test": (start, end),
            "training": (end, end + training),
            "validation": (end + training, end + training + validation),
        }
        first, last = bounds[split]
        return [ring[index % len(ring)] for index in range(first, last)]


def generator(seed: int, *labels: str) -> random.Random:
    """A generator of its own for each use, so that adding one changes no other. Same seed, same stream."""
    digest = hashlib.sha256("/".join([str(seed), *labels]).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def make_world(settings: MiniatureSettings) -> World:
    """Draw names and facts. Inside each group an attribute's values are equally frequent, to within one."""
    sizes = {
        "test": settings.test_entities,
        "training": settings.training_entities,
        "validation": settings.validation_entities,
        "public": settings.public_entities,
    }
    names = _names(generator(settings.seed, "names"), sum(sizes.values()))
    draw = generator(settings.seed, "facts")
    groups: dict[str, list[str]] = {}
    facts: dict[str, dict[str, str]] = {name: {} for name in names}
    exposure: dict[str, float] = {}
    start = 0
    for group, size in sizes.items():
        groups[group] = names[start : start + size]
        start += size
        for attribute, kind in ATTRIBUTES.items():
            repeated = [kind.values[index % len(kind.values)] for index in range(size)]
            draw.shuffle(repeated)
            for name, value in zip(groups[group], repeated, strict=True):
                facts[name][attribute] = value
        exposure |= {name: EXPOSURE[index % len(EXPOSURE)] for index, name in enumerate(groups[group])}
    return World(settings.seed, settings.formats, settings.test_facts, groups, facts, exposure)


def _names(draw: random.Random, count: int) -> list[str]:
    """Distinct invented words of three syllables."""
    most = len(SYLLABLES) ** 3
    if count > most // 2:
        raise InputError(f"miniature: {count} entities, but only {most} names exist.", "ask for at most half as many.")
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(draw.choice(SYLLABLES) for _ in range(3)).capitalize()] = None
    return list(names)


def world_to_json(world: World) -> dict[str, Any]:
    """What `world.json` holds."""
    return asdict(world)


def read_world(folder: Path) -> World:
    """The world written by `write_world` into `folder`."""
    path = folder / "world.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "run `lm-validity miniature world` first.")
    return World(**read_json(path))
