"""Before and after a run: preflight, failed cells, recipes that changed."""

import errno
import fnmatch
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.config.sheets import HubModel, is_folder, split_revision
from lm_validity.errors import INSTALL_CUDA, INSTALL_NF4, ON_CPU, PREFETCH, CellError, InputError, Problem, again
from lm_validity.files import is_whole, read_json_or, report_problems
from lm_validity.monitor.status import controller_since, orphan_jobs
from lm_validity.run.cell import Cell, label, made_by, read_record_or
from lm_validity.run.inputs import task_problems, why_not_causal
from lm_validity.run.rules import RULES
from lm_validity.run.rules.base import kind_and_id, kind_label, size_class
from lm_validity.run.store import Store, describe_holder, is_stale
from lm_validity.run.workspace import ASIDE, Entry, Grid, Workload, Workspace, read_manifest
from lm_validity.words import count

# ----------------------------------------------------------------------------------------------------------------------
# After an update or a change of settings: which finished cells would be computed again, and why.

DIGEST_LENGTH = 40  # a value as long as this says nothing to a person
ABSENT = "absent"
UNKNOWN = "the recipe that it was finished under is not known"
CHOSE_ANOTHER = "it chose a cell of another recipe"


def outdated_cells(workspace: Workspace) -> dict[Cell, str]:
    """The cells whose manifests have a result of another recipe than the present one, each with what differs. No table
    may be made from them, nor from what stands on them. A manifest that cannot be read, or a recipe that cannot be
    known, is not judged here: who needs it raises."""
    outdated = {}
    for cell in workspace.grid.cells():
        try:
            if workspace.outdated(cell) == cell:
                entry, address = workspace.entry(cell), workspace.known_address(cell)
                outdated[cell] = CHOSE_ANOTHER
                if entry is not None and entry.folder is not None:
                    recipe = read_json_or(workspace.store.path(entry.folder) / "cell.json", {}).get("recipe")
                    outdated[cell] = ", ".join(changes(recipe, address.recipe)) if recipe and address else UNKNOWN
        except (InputError, CellError):
            continue
    return outdated


def recomputed_cells(workspace: Workspace) -> list[str]:
    """One line per rule and reason: `finetune_adapter: epochs 3 -> 5 (8 cells, and what stands on them)`."""
    reasons = Counter(f"{cell.rule}: {reason}" for cell, reason in outdated_cells(workspace).items())
    return [f"{words} ({count(cells, 'cell')}, and what stands on them)" for words, cells in reasons.items()]


def changes(recorded: Mapping[str, object], now: Mapping[str, object], prefix: str = "") -> list[str]:
    """What differs between two recipes: `epochs 3 -> 5`; of a digest that it changed."""
    differences = []
    for key in {**recorded, **now}:
        old, new = recorded.get(key, ABSENT), now.get(key, ABSENT)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += changes(old, new, f"{prefix}{key}.")
        elif old != new:
            long = any(isinstance(value, str) and len(value) >= DIGEST_LENGTH for value in (old, new))
            differences.append(f"{prefix}{key} changed" if long else f"{prefix}{key} {old} -> {new}")
    return differences


# ----------------------------------------------------------------------------------------------------------------------
# Before a run is submitted: what would make its jobs fail after hours in a queue. Each problem is one line.

OWN_COPY = "get the right to write there, or copy the run to a folder of your own"
AGAIN = "will be computed again"
SMALL_FILE = 2**20  # bytes; a disk that is full may still take an empty file


def readiness_problems(run: Run) -> Iterator[Problem]:
    """Locks, a full disk, models that are not causal, chat templates, GPU memory, a torch without CUDA, no
    bitsandbytes. Asks no network."""
    if any(Path(".snakemake/locks").glob("*")) and controller_since(run.results) is None:
        way = "look for jobs it left (below), then `snakemake --unlock` with the same --configfile"
        yield Problem(".snakemake/locks", "locked by a Snakemake that is no longer running", way)
    yield from disk_problems(run)
    if not run.configuration.replay:
        for problems in (model_problems, gpu_memory_problems, task_problems, package_problems):
            yield from problems(run)


def disk_problems(run: Run) -> Iterator[Problem]:
    """Folders of results in which nothing can be written: a full disk, a spent quota, no permission; a store or records
    of somebody else."""
    folder = next(parent for parent in (run.results, *run.results.parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=folder) as handle:
            handle.write(bytes(SMALL_FILE))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        way = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "get the right to write"
        action = f"{way} there, or name another folder under `results` in the configuration"
        yield Problem(str(folder), f"no file can be written ({error.strerror})", action)
        return
    for path in (path for depth in ("*", "*/*", "*/*/*") for path in sorted(run.results.glob(depth))):
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            yield Problem(str(path), "no file can be written there", OWN_COPY)
            return


def model_problems(run: Run) -> Iterator[Problem]:
    """Models of the agreement and signal studies whose config.json is here and is not that of a causal one, and
    instruction-tuned ones that are to be asked in chat and have no template."""
    prompts = run.configuration.evaluation.instruction_tuned_prompts
    for row in map(run.models.__getitem__, Grid(run).used_models):
        record = read_record_or(run.results / "prefetch" / "models" / f"{row.model}.json")
        fetched = [record["checkpoints"]["final"]] if record else []
        folders = [Path(point["path"]) / (point["subfolder"] or "") for point in fetched]
        folders += [Path(row.path).expanduser()] if row.is_local else []
        configs = (read_json_or(folder / "config.json", None) for folder in folders)
        config = next((config for config in configs if config is not None), None)
        if config is not None and (wrong := why_not_causal(config)) is not None:
            yield Problem(f"model {row.model}", *wrong)
        if row.instruction_tuned and "chat" in prompts and record and not record.get("chat_template"):
            action = "add chat_template.jinja to its folder, or set instruction_tuned to 0 in the models sheet"
            yield Problem(f"model {row.model}", "its tokenizer has no chat template", action)


def gpu_memory_problems(run: Run) -> Iterator[Problem]:
    """Models that do not fit the GPUs of their size class, by a formula; of the bias study, which uses one, a single
    GPU."""
    workload = Workload(run)
    for row in Grid(run).used_rows if run.configuration.evaluation.device != "cpu" else ():
        of_size, needed_gb, (kind, name) = size_class(run, row), workload.gpu_gb(row), kind_and_id(row)
        gpus, action = of_size.gpu, "choose a size_class with more GPU memory"
        if kind != "models":
            gpus, action = min(gpus, 1), "choose a size_class with larger GPUs: the bias study uses one of them"
        if needed_gb > gpus * of_size.gpu_memory_gb:
            gb = f"{of_size.gpu} x {of_size.gpu_memory_gb:g} GB"
            problem = f"needs about {needed_gb:.0f} GB of GPU memory, size class {row.size_class!r} has {gb}"
            yield Problem(f"{kind_label(kind)} {name}", problem, action)


def package_problems(run: Run) -> Iterator[Problem]:
    """A torch that cannot use the GPUs that jobs need: they would end as soon as they start. 4-bit weights that the
    bias study asks for, where bitsandbytes is not installed."""
    device = run.configuration.evaluation.device
    need_gpus = any(size_class(run, row).gpu for row in Grid(run).used_rows) if device == "auto" else device != "cpu"
    if need_gpus and (version := importlib.metadata.version("torch")).endswith("+cpu"):
        problem = f"{version} is the build without CUDA, and jobs need GPUs"
        yield Problem("torch", problem, f"{INSTALL_CUDA}, or {ON_CPU}")
    bias = run.configuration.bias if run.language_models else None
    prompted = bias is not None and any(experiment.method == "zero_shot" for experiment in bias.experiments.values())
    is_4_bit = prompted and run.bias.zero_shot.quantization == "nf4"
    if is_4_bit and importlib.util.find_spec("bitsandbytes") is None:
        yield Problem("bitsandbytes", "is not installed, and bias.zero_shot.quantization is nf4", INSTALL_NF4)


# ----------------------------------------------------------------------------------------------------------------------
# What is failed, missing or damaged in a run, and how to have it computed again.
#
# Removing a manifest is how a cell is asked for: Snakemake starts its job anew, and the job finds every other cell of
# it in the store.


def existing_entries(grid: Grid) -> Iterator[tuple[str, list[Entry] | None]]:
    """(manifest path, entries) of every manifest of the run that exists; None where it cannot be read, or has no cell
    of its job. One that lacks some is of before the study grew, and Snakemake runs its job again."""
    expected: dict[str, set[Cell]] = {}
    for cell in grid.cells():
        expected.setdefault(grid.manifest_of(cell), set()).add(cell)
    for path, cells in expected.items():
        if Path(path).is_file():
            try:
                entries = read_manifest(path)
            except InputError:
                yield path, None
            else:
                yield path, entries if cells & {entry.cell for entry in entries} else None


def unfinished_cells(grid: Grid) -> dict[str, list[Entry]]:
    """The failed and missing cells by manifest; none of a manifest that cannot be read."""
    unfinished = {}
    for path, entries in existing_entries(grid):
        broken = [entry for entry in entries or () if entry.status != "done"]
        if broken or entries is None:
            unfinished[path] = broken
    return unfinished


def remove_manifests(paths: Iterable[str]) -> None:
    """Delete manifests, so that their jobs run again."""
    for path in paths:
        Path(path).unlink(missing_ok=True)


def set_aside(paths: set[str]) -> None:
    """Rename manifests, so that their jobs run again while partial reports still find what they hold."""
    for path in paths:
        os.replace(path, f"{path}{ASIDE}")


def manifests_digest(grid: Grid) -> str:
    """sha256 over all manifests of the run: tables are made anew when any cell's content changed."""
    digest = hashlib.sha256()
    for path in grid.all_manifests():
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def repair(run: Run, *, verify: bool = True) -> list[Problem]:
    """Remove manifests whose cells are missing, damaged or failed, and damaged cells themselves, whether or not a
    manifest lists them: the next job would take them for finished.

    With `verify` every file's sha256 is read; without, only that the cells are there.
    """
    grid, store, problems = Grid(run), Store(run.results / "store"), list[Problem]()
    listed = list(existing_entries(grid))  # before the store, in which jobs put cells before they list them
    damage = {folder: store.damage(folder) if verify else None for folder in store.folders()}
    for path, entries in listed:
        unfinished = [entry for entry in entries or () if entry.status != "done"]
        folders = [folder for entry in entries or () for folder in entry.folders]
        for folder in folders:
            damage.setdefault(folder, "missing from the store")
        if entries is None or unfinished or any(damage[folder] for folder in folders):
            action = _removed(remove_manifests, [path])
            if entries is None or action != AGAIN:
                problem = "not a manifest of its job, or not whole" if entries is None else "lists unfinished cells"
                problems.append(Problem(path, problem, action))
            action = AGAIN if action == AGAIN else "its manifest stays"
            problems += [Problem(label(entry.cell), f"{entry.status} ({entry.error})", action) for entry in unfinished]
    for folder, harm in damage.items():
        if harm:
            problems.append(Problem(folder, harm, _removed(_remove_cell, run, store, folder)))
    return problems


def _removed(remove: Callable[..., None], *arguments: object) -> str:
    """What becomes of something that is to be removed: that it could not be is said, and all the rest too."""
    try:
        remove(*arguments)
    except OSError as error:
        return f"not removed ({error.strerror or error}): get the right to write there"
    return AGAIN


def remove_outdated(run: Run) -> list[Problem]:
    """Remove the manifests with a cell of another recipe than the present one, so that their jobs run again. Nothing is
    removed while a Snakemake is at work, whose jobs need them. Returns those that could not be removed."""
    if controller_since(run.results) is not None:
        return []
    workspace = Workspace(run)
    paths = sorted(set(map(workspace.grid.manifest_of, outdated_cells(workspace))))
    actions = {path: _removed(remove_manifests, [path]) for path in paths}
    return [Problem(path, "lists cells of another recipe", act) for path, act in actions.items() if act != AGAIN]


def _remove_cell(run: Run, store: Store, folder: str) -> None:
    """A finished cell, and what a killed job may have left for resuming it: it is to be computed from the start."""
    store.remove(folder)
    shutil.rmtree(run.results / "work" / folder, ignore_errors=True)


def unfetched_models(run: Run) -> dict[str, HubModel]:
    """Hub models without a record yet, by what they are called: `model` or `language model`, and the id."""
    results, unfetched = run.results / "prefetch", dict[str, HubModel]()
    for model in Grid(run).used_models:
        row = run.models[model]
        if not row.is_local and not (results / "models" / f"{model}.json").is_file():
            unfetched[f"model {model}"] = HubModel(row.path, row.revision, row.folders)
        for adapter in row.adapters:
            if not is_folder(adapter) and not (results / "models" / f"{model}.json").is_file():
                unfetched[f"model {model}, adapter {adapter}"] = split_revision(adapter)
    for model, language_model in run.language_models.items():
        if not is_folder(language_model.path) and not (results / "language_models" / f"{model}.json").is_file():
            unfetched[f"language model {model}"] = HubModel(language_model.path, language_model.revision)
    return unfetched


def record_problems(run: Run) -> list[Problem]:
    """Models and benchmarks that were not fetched yet, records that cannot be read or are gone, and documents that are
    gone. The miniature's are not fetched: the workflow makes them."""
    grid, prefetch, stood_on = Grid(run), run.results / "prefetch", missing_inputs(run)
    problems = [
        Problem(path, "gone, and finished cells stand on it", f"write it again: {again(made_by(Path(path)))}")
        for path in stood_on
    ]
    sources: dict[str, dict[str, str | None]] = {
        "models": {name: run.models[name].path for name in grid.used_models},
        "benchmarks": {name: run.benchmarks[name].include_path for name in grid.used_benchmarks},
        "language_models": {name: row.path for name, row in run.language_models.items()},
        "tasks": {name: row.path for name, row in run.tasks.items()},
    }
    for sheet, rows in sources.items():
        for name, source in rows.items():
            path, subject = prefetch / sheet / f"{name}.json", f"{kind_label(sheet)} {name}"
            if not path.is_file():
                if not run.is_miniature(source) and str(path) not in stood_on:
                    problems.append(Problem(subject, "not fetched yet", f"run {PREFETCH}, where there is a network"))
                continue
            record = read_record_or(path)
            if not record:
                problems.append(Problem(str(path), "not a whole record", f"write it again: {again(made_by(path))}"))
            for point, weights in record.get("checkpoints", {}).items() if not record.get("replay") else ():
                folders = [Path(weights["path"]) / (weights["subfolder"] or "")]
                folders += [Path(weights["adapter"]["path"])] if "adapter" in weights else []
                for folder in (folder for folder in folders if not any(folder.glob("*.safetensors"))):
                    problem = f"checkpoint {point}: no weights in {folder} any more"
                    problems.append(Problem(subject, problem, again(made_by(path))))
    return problems


def damaged_outputs(run: Run) -> list[Problem]:
    """Files that the run wrote, and Snakemake takes for finished, of which only a part is there. None is removed."""
    written = (
        ("sheets.json", "delete it, and the next run writes it again"),
        ("configuration.json", "the next run that has a job to do writes it again"),
        ("tables/*.parquet", f"write it again: {again('merge')}"),
        ("splits/*/*.json", ""),
        ("splits/*/documents.parquet", ""),
    )
    outputs = [(path, action) for pattern, action in written for path in sorted(run.results.glob(pattern))]
    problems = [
        Problem(str(path), "not a whole file", action or f"write it again: {again(made_by(path))}")
        for path, action in outputs
        if not path.name.startswith(".")  # not what a job is writing
        and not (read_record_or(path) if path.match("splits/*/*.json") else is_whole(path))
    ]
    for folder in sorted((run.results / "reports").glob("*")):
        problems += report_problems(folder)
    return problems


def missing_inputs(run: Run) -> list[str]:
    """Records and documents that are gone though there are manifests of the jobs that read them: Snakemake, which looks
    at the last files first, does not make them again."""
    grid = Grid(run)
    listed = (job for job in grid.jobs.values() if all(Path(path).is_file() for path in grid.manifests(job)))
    read = {path for job in listed for path in grid.inputs(job)}
    divided = {Path(path).parent.name for path in read if Path(path).is_relative_to(run.results / "splits")}
    read |= {f"{run.results}/prefetch/benchmarks/{benchmark}.json" for benchmark in divided}
    return sorted(path for path in read - set(grid.all_manifests()) if not Path(path).is_file())


def leases(run: Run, *, stale: bool) -> list[Problem]:
    """Stale leases, which the next job takes over by itself; or held ones: cells that are being computed."""
    problems = []
    for path in sorted((run.results / "store" / ".leases").glob("*.json")):
        if is_stale(path) == stale:
            held = f"being computed by {describe_holder(path)}", "a second job waits for it; or cancel it"
            gone = "stale lease of a job that is no longer running", "the next job takes it over"
            problems.append(Problem(path.stem, *(gone if stale else held)))
    return problems


def orphan_problems(run: Run) -> list[Problem]:
    """Slurm jobs that a killed Snakemake left behind."""
    cause = "left by a Snakemake that is no longer running"
    way = "let it finish, a new run waits for its cells; or `scancel {0.id}`"
    return [
        Problem(f"Slurm job {job.id} ({job.comment}, {job.state})", cause, way.format(job))
        for job in orphan_jobs(run.results)
    ]


def forget(run: Run, patterns: list[str]) -> list[str]:
    """Drop finished cells whose `rule/model/name` matches a shell pattern, and the manifests that hold them.

    Returns the folders dropped. Raises InputError for a pattern that matches nothing.
    """
    grid, store = Grid(run), Store(run.results / "store")
    dropped: set[str] = set()
    names = {folder: folder.rpartition("--")[0] for folder in store.folders()}
    for pattern in patterns:
        globs = (pattern, f"*/{pattern}")
        matching = {folder for folder, name in names.items() if any(fnmatch.fnmatchcase(name, glob) for glob in globs)}
        if not matching:
            raise InputError(
                f"{run.results / 'store'}: no finished cell matches {pattern!r}.",
                "patterns are rule/model/cell, e.g. 'finetune_adapter/web-*/qa.*'.",
            )
        dropped |= matching
    remove = {
        path
        for path, entries in existing_entries(grid)
        for entry in entries or ()
        if dropped.intersection(entry.folders)
    }
    for folder in {str(Path(path).parent) for path in remove} | {str(store.path(name).parent) for name in dropped}:
        if not os.access(folder, os.W_OK | os.X_OK):  # all or nothing
            raise InputError(f"{folder}: no file can be removed there, and nothing was forgotten.", f"{OWN_COPY}.")
    remove_manifests(remove)
    for folder in dropped:
        _remove_cell(run, store, folder)
    for rule in {folder.partition("/")[0] for folder in dropped} & set(RULES):
        for shared in RULES[rule].shared_work(run.results / "work"):  # or it would be read, not computed again
            shutil.rmtree(shared, ignore_errors=True)
    return sorted(dropped)
