"""The models of a run that have yet to be fetched from the hub."""

from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.config.rows import is_folder, split_revision
from lm_validity.run.participants import Participants


class HubModel(NamedTuple):
    """A model on the hub; `folders` of it, as prefixes of file names, that are fetched."""

    path: str
    revision: str | None = None
    folders: tuple[str, ...] = ("",)


def unfetched_models(run: Run) -> dict[str, HubModel]:
    """Hub models without a record yet, by what they are called: `model` or `language model`, and the id."""
    results, found = run.results / "prefetch", dict[str, HubModel]()
    for model in Participants(run).used_models:
        row = run.models[model]
        if not row.is_local and not (results / "models" / f"{model}.json").is_file():
            found[f"model {model}"] = HubModel(row.path, row.revision, row.folders)
        for adapter in row.adapters:
            if not is_folder(adapter) and not (results / "models" / f"{model}.json").is_file():
                found[f"model {model}, adapter {adapter}"] = HubModel(*split_revision(adapter))
    for model, other in run.language_models.items():
        if not is_folder(other.path) and not (results / "language_models" / f"{model}.json").is_file():
            found[f"language model {model}"] = HubModel(other.path, other.revision)
    return found
