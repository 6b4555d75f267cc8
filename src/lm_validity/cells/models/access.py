"""The hub before anything is fetched: may this account have the models, and is there room for them?

Asks the hub a small question a model; without a network nothing can be said, and `prefetch` will say it.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lm_validity.errors import Problem
from lm_validity.run.hub_models import HubModel

AT_ONCE = 8


def access_problems(models: dict[str, HubModel]) -> list[Problem]:
    """`models`: name for messages -> those that were not fetched yet."""
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE or not models:
        return []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_ask, models.values()))
    problems = [
        Problem(f"{model} ({models[model].path})", *answer)
        for model, answer in zip(models, answers, strict=True)
        if isinstance(answer, tuple)
    ]
    needed = sum(answer for answer in answers if isinstance(answer, int))
    free = shutil.disk_usage(_existing(Path(HF_HUB_CACHE))).free
    if needed > free:
        what = f"{needed / 1e9:.0f} GB of models to download, {free / 1e9:.0f} GB free"
        problems.append(Problem(str(HF_HUB_CACHE), what, "free some space, or point HF_HOME at a larger disk"))
    return problems


def _ask(model: HubModel) -> int | tuple[str, str]:
    """Bytes to download; or (what is wrong, what to do). 0 where the hub cannot be asked."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    from lm_validity.cells.models.prefetch import files_to_fetch, hub_errors

    path = model.path
    licence = f"accept its licence at https://huggingface.co/{path} and run `hf auth login`"
    try:
        information = HfApi().model_info(path, revision=model.revision, files_metadata=True)
        if information.gated and get_token() is None:
            return "gated, and no token is stored on this machine", licence
        if information.gated:
            HfApi().auth_check(path)
        return sum(file.size or 0 for file in files_to_fetch(path, information, model.folders))
    except GatedRepoError:
        return "gated, and this account has no access", licence
    except RepositoryNotFoundError:
        return "no such repository on the hub, or a private one", "check `path` in the sheet, or `hf auth login`"
    except HFValidationError:
        return (
            "neither a folder here nor a hub id",
            "check `path` in the sheet: a folder must exist, a hub id is owner/name",
        )
    except hub_errors():
        return 0


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
