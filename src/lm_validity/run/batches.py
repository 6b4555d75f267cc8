"""Which members of a list share a job: so many, all, or (auto) as many as the longest job may take.

Standard library only: the Snakefile builds jobs at parse time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class Group:
    """Neighbours in a list that share a job."""

    name: str
    members: tuple[str, ...]


def make_groups(
    members: tuple[str, ...],
    size: int | Literal["all", "auto"],
    everything: str,
    prefix: str = "",
    *,
    minutes: Mapping[str, float] = MappingProxyType({}),
    longest: float = 0.0,
) -> list[Group]:
    """Cut `members` into runs of at most `size` ("all": one run; "auto": as long as the sum of their `minutes` is at
    most `longest`), each named for its files.

    A run of one is named by its member; the whole list is `all-<everything>`; others `group-<i>-of-<n>-<everything>`.
    """
    if not members:
        return []
    if size == "auto":
        cuts = list(_by_minutes(members, minutes, longest))
    else:
        most = len(members) if isinstance(size, str) else size
        cuts = [members[start : start + most] for start in range(0, len(members), most)]
    if len(cuts) == 1 and len(members) > 1:
        return [Group(f"all-{everything}", members)]
    if len(cuts) == len(members):
        return [Group(f"{prefix}{cut[0]}", cut) for cut in cuts]
    return [Group(f"group-{i}-of-{len(cuts)}-{everything}", cut) for i, cut in enumerate(cuts, 1)]


def _by_minutes(members: tuple[str, ...], minutes: Mapping[str, float], longest: float) -> Iterator[tuple[str, ...]]:
    """Runs of neighbours whose minutes add up to at most `longest`; one that takes longer is alone."""
    run: list[str] = []
    total = 0.0
    for member in members:
        if run and total + minutes[member] > longest:
            yield tuple(run)
            run, total = [], 0.0
        run.append(member)
        total += minutes[member]
    yield tuple(run)
