"""What a run is computed from, and whether that is still so: one answer for preflight, dry runs and runs.

A record of the login node names the files that it is of, each by its state. Snakemake looks at times, and a link that
leads elsewhere, a restored backup or `cp -p` leave those as they were; so the files are no inputs of its rules. Where
the state of one is another, a note beside the record is written: it is the rule's input, and newer than the record, so
everything is read anew before any cell. Standard library and pydantic only: the Snakefile asks at parse time.
"""

import ast
import contextlib
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypedDict

from lm_validity.config.load import Run, key_values
from lm_validity.config.rows import Sheets
from lm_validity.config.sheets import is_folder
from lm_validity.errors import InputError, Problem, Refusal, nearest
from lm_validity.files import file_sha256, json_text, read_json, read_json_or, write_text
from lm_validity.run.rules.base import Participants
from lm_validity.run.scoring import GROUP_LINE, TASK_LINE, named_files, task_sources

# ----------------------------------------------------------------------------------------------------------------------
# Which safetensors of a folder are its model. Some come twice: Mistral's also as consolidated.safetensors.

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The weights of a local model, or of a checkpoint of it, as transformers loads them: model.safetensors, else the
    shards that the index names; all *.safetensors where there is neither, or the index cannot be read."""
    names = {path.name for path in folder.glob("*.safetensors")}
    if WHOLE in names:
        return [folder / WHOLE]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        names &= {*read_json(folder / INDEX)["weight_map"].values()}
    return [folder / name for name in sorted(names)]


# ----------------------------------------------------------------------------------------------------------------------
# Whether a config.json is that of a causal language model, by what transformers lists of architectures.
#
# The lists are read from its source: importing it takes seconds a model, and a login node may have no torch.

Lists: TypeAlias = dict[str, dict[str, str | tuple[str, ...]]]  # name -> {model_type: class or classes}

_CAUSAL, _MASKED = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
_SEQ_TO_SEQ = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
# of models for other work; some of them load as causal ones, with weights drawn at random or with eyes for the answer
_WORK = ("MULTIPLE_CHOICE", "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING")
_OTHER_WORK = (_MASKED, _SEQ_TO_SEQ, *(f"MODEL_FOR_{work}_MAPPING_NAMES" for work in _WORK))
SEEN_AHEAD: dict[str, tuple[object, ...]] = {"use_bidirectional_attention": (True, "all"), "is_causal": (False,)}
SEE_AHEAD = ("xlnet", "cpmant")  # listed as causal; each position sees those behind it

UNKNOWN = "models are loaded without remote code: choose a model of a known architecture, or update transformers"
TAKE_OUT = (
    "take the model out of the sheet, or choose one with a language modelling head; a masked language model can take "
    "part in the bias study (`language_models`)"
)


def why_not_causal(config: object) -> Refusal | None:
    """(what is wrong with a config.json, what to do), or None for a causal language model. None also where transformers
    is not installed, or keeps its lists elsewhere: loading the model will say it then."""
    if not isinstance(config, dict):
        return Refusal("config.json is not an object", "a model folder is what save_pretrained writes")
    lists = _lists()
    if lists is None:
        return None
    kind, named, causal = config.get("model_type"), config.get("architectures") or [], lists[_CAUSAL]
    if kind not in lists["CONFIG_MAPPING_NAMES"] and kind not in causal:
        return Refusal(f"transformers does not know model_type {kind!r} of its config.json", UNKNOWN)
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    if keys := [key for part in parts for key, values in SEEN_AHEAD.items() if part.get(key) in values]:
        return Refusal(f"{keys[0]} of its config.json lets each position see those behind it", TAKE_OUT)
    first, is_masked = named[0] if named else "", kind in lists[_MASKED]
    other_work = {name for key in _OTHER_WORK for name in _classes(lists[key].values())} - _classes(causal.values())
    # architectures such as BERT, whose causal class still sees all tokens unless `is_decoder` is set
    sees_all = is_masked and kind not in lists[_SEQ_TO_SEQ] and kind != "xlm" and not config.get("is_decoder")
    # a model's body alone: without tied embeddings nothing stands for its head
    is_body = first in _classes([lists["MODEL_MAPPING_NAMES"].get(kind, ())])
    has_no_head = is_body and (is_masked or config.get("tie_word_embeddings") is False)
    looks_ahead = kind in SEE_AHEAD or (kind == "xlm" and not config.get("causal")) or sees_all
    if kind not in causal or looks_ahead or first in other_work or has_no_head:
        words = ", ".join(named) or f"model_type {kind}"
        return Refusal(f"config.json is not that of a causal language model ({words})", TAKE_OUT)
    return None


def _classes(entries: Iterable[str | tuple[str, ...]]) -> set[str]:
    return {name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry)}


@cache
def _lists() -> Lists | None:
    """What the source of transformers lists; None where that has not all of them."""
    lists: Lists = {}
    try:
        spec = importlib.util.find_spec("transformers")
        if spec is None or spec.submodule_search_locations is None:
            return None
        (folder,) = spec.submodule_search_locations
        for file in ("modeling_auto.py", "auto_mappings.py"):
            for node in ast.parse((Path(folder) / "models" / "auto" / file).read_text(encoding="utf-8")).body:
                match node:  # `NAME = OrderedDict([...])` that is written out
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=pairs) as listed])):
                        if all(isinstance(pair, ast.Tuple) for pair in pairs):
                            lists[name] = dict(ast.literal_eval(listed))
    except (AttributeError, ValueError, OSError, SyntaxError):
        return None
    list_names = {"CONFIG_MAPPING_NAMES", "MODEL_MAPPING_NAMES", _CAUSAL, *_OTHER_WORK}
    return lists if list_names <= set(lists) else None


FORMAT = 1  # of a results folder; one of another version is refused
STUDY = "study.json"  # in it: whose it is
MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
SMALL = 16 * 2**20  # bytes: a file up to this size is known by its content, a larger one by size, times and inode
KINDS = {"models": "model", "benchmarks": "benchmark", "language_models": "language model", "tasks": "task"}

# size, time of the content's last change and of the file's (nanoseconds), inode; sha256 of a small file. Nobody sets
# the third by hand: weights replaced with size and time kept are others. Of a link: what it leads to.
State = list[int | str | None]


def states_of(paths: Iterable[str | Path], small: int = SMALL) -> dict[str, State]:
    """The states of the files that are there, by path. small: up to this size a file is read."""
    states: dict[str, State] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            digest = file_sha256(Path(path)) if status.st_size <= small else None
            states[str(path)] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, digest]
    return states


def is_as_recorded(path: str, recorded: State) -> bool:
    """Whether a file is what was recorded: by its times and inode, else a small one by its content."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    if [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino] == recorded[:4]:
        return True
    return recorded[4] is not None and status.st_size == recorded[0] and file_sha256(Path(path)) == recorded[4]


def own_files(run: Run, kind: str, name: str) -> list[str]:
    """The user's files that a row of a sheet names, and a model's that the run makes. kind: of `KINDS`."""
    if run.configuration.replay:
        return [run.configuration.replay.scores]
    row = getattr(run, kind)[name]
    if kind in ("models", "language_models"):
        # in its root and the folders of its checkpoints; of an adapter in its root
        paths = [f"{row.path}/{folder}" for folder in getattr(row, "folders", ("",))] if is_folder(row.path) else []
        paths += [adapter for adapter in getattr(row, "adapters", ()) if is_folder(adapter)]
        folders = [Path(path).expanduser() for path in paths]
        names = [{str(file) for pattern in MODEL_FILES for file in folder.glob(pattern)} for folder in folders]
        return [name for of_folder in names for name in sorted(of_folder)]
    if kind == "tasks":
        files = [row.path]
    elif row.corpus:
        files = [row.corpus, *sorted(map(str, Path(row.corpus).rglob("*.txt")))]
    else:
        files = task_sources(row.include_path) if row.include_path else []
    return [file for file in files if Path(file).is_file() and not Path(file).is_relative_to(run.results)]


class Change(NamedTuple):
    """A record whose files are others now: its kind and id, the first file, and the states of all."""

    kind: str
    name: str
    path: str
    states: Mapping[str, State]

    def describe(self) -> str:
        """One line for the terminal."""
        return f"{KINDS[self.kind]} {self.name!r}: {self.path} changed after it was recorded"


def changes(run: Run, results: Path | None = None) -> list[Change]:
    """The records of a run of which a file is another now, is gone or is new. `results`: where the run's folder is."""
    plan, prefetch, outdated = Participants(run), (results or run.results) / "prefetch", list[Change]()
    names = {"models": plan.used_models, "benchmarks": plan.used_benchmarks}
    for kind in KINDS:
        for name in names.get(kind, getattr(run, kind)):
            record = read_json_or(prefetch / kind / f"{name}.json", None)
            if not isinstance(record, dict):
                continue
            recorded = record.get("sources") or {}
            files = own_files(run, kind, name)
            changed = [path for path in files if path not in recorded]
            changed += [path for path, state in recorded.items() if not is_as_recorded(path, state)]
            changed += _moved_revision(run, kind, name, record)
            if changed:
                outdated.append(Change(kind, name, changed[0], states_of({*files, *recorded, *changed})))
    return outdated


def _moved_revision(run: Run, kind: str, name: str, record: Mapping[str, object]) -> list[str]:
    """The file of the hub's cache by which a branch leads to another commit than the recorded one."""
    checkpoints = record.get("checkpoints")
    if kind not in ("models", "language_models") or not isinstance(checkpoints, dict) or record.get("replay"):
        return []
    row, moved = getattr(run, kind)[name], []
    revisions = {point.checkpoint: point.revision for point in getattr(row, "checkpoints", ())}
    for point, location in checkpoints.items():
        reference = Path(location["path"]).parents[1] / "refs" / (revisions.get(point) or row.revision or "main")
        with contextlib.suppress(OSError):  # fetched by its commit, or the cache is gone
            if location.get("revision") and reference.read_text(encoding="utf-8").strip() != location["revision"]:
                moved.append(str(reference))
    return moved


def note_of(results: Path, kind: str, name: str) -> Path:
    """The note that a record's files are others, whether or not there is one."""
    return results / "prefetch" / "changed" / kind / f"{name}.json"


def note_changes(run: Run, results: Path | None = None) -> list[Change]:
    """`changes`, with a note of each, by which the next run reads its files anew. Raises OSError where none can be
    written."""
    outdated = changes(run, results)
    for change in outdated:
        text = json_text({"path": change.path, "states": change.states})
        note = note_of(results or run.results, change.kind, change.name)
        record = note.parents[2] / change.kind / note.name
        is_newer = note.is_file() and note.stat().st_mtime_ns > record.stat().st_mtime_ns
        if not is_newer or note.read_text(encoding="utf-8") != text:
            write_text(note, text)
    return outdated


# ----------------------------------------------------------------------------------------------------------------------
# Whose a results folder is.


class Study(TypedDict):
    """Whose a results folder is (`study.json`): its configuration's file as seen from there, so that both may be moved
    together; the keys and values, the digests of the sheets by path."""

    format: int
    configfile: str
    keys: dict[str, object]
    sheets: dict[str, str]


def study_of(run: Run, configfile: str | Path, sheets: Sheets) -> Study:
    """What `study.json` says."""
    digests = {path: hashlib.sha256((text or "").encode()).hexdigest() for path, text in sheets.texts.items()}
    keys = {key: value for key, value in key_values(run.configuration).items() if key != "results"}
    return Study(format=FORMAT, configfile=os.path.relpath(configfile, run.results), keys=keys, sheets=digests)


def check_study(results: Path, study: Study) -> None:
    """Raises InputError where a results folder is another study's, whose tables would hold both, or another version's.
    The same file of a configuration is the same study, whatever is edited in it; so is an equal one elsewhere."""
    path, another = results / STUDY, "give this one another `name`, or another folder under `results`"
    if not path.is_file() and (not (results / "store").is_dir() or (results / "store").is_symlink()):
        return
    written: Study = read_json_or(path, {})
    if written.get("format") != FORMAT:
        problem = f"{results}: the results of another version of lm-validity ({STUDY} of format {FORMAT} is not there)."
        raise InputError(problem, f"{another}; or delete that folder.")
    keys, sheets = written["keys"], study["sheets"] | written["sheets"]
    differing = [key for key in {**keys, **study["keys"]} if keys.get(key) != study["keys"].get(key)]
    differing += [key for key, digest in study["sheets"].items() if sheets[key] != digest]
    if differing and written["configfile"] != study["configfile"]:
        whose = os.path.normpath(results / written["configfile"])
        raise InputError(
            f"{results}: the results of another study, {whose}; {differing[0]!r} is another here.",
            f"{another}; if it is the same study in a new file, delete {path}.",
        )


# ----------------------------------------------------------------------------------------------------------------------
# Names of lm-eval tasks, by a text scan: the Snakefile asks at parse time, so lm_eval is not imported.


def task_problems(run: Run) -> Iterator[Problem]:
    """Tasks that do not exist, or have nothing to train on where a study fine-tunes; of benchmarks that were not
    fetched yet."""
    plan = Participants(run)
    for name in () if run.configuration.replay else plan.used_benchmarks:
        row, record = run.benchmarks[name], run.results / f"prefetch/benchmarks/{name}.json"
        if row.corpus or record.is_file() or run.is_miniature(row.include_path):
            continue
        refusal = task_problem(row.task, row.include_path, trains=not plan.is_test_only(name))
        if refusal is not None:
            yield Problem(f"benchmark {name} (task {row.task})", *refusal)


def check_tasks(run: Run) -> None:
    """Raises InputError for the first of `task_problems`: nothing can be planned with it."""
    for problem in task_problems(run):
        raise InputError(f"{problem.where}: {problem.description}.", problem.action)


def task_problem(name: str, include_path: str | None, *, trains: bool) -> Refusal | None:
    """(what is wrong with a task's name, what to do): none of the user's files, and of lm-eval's, has the name, or the
    one that declares it has no documents to train on.

    None where nothing is wrong, or it cannot be known: a group, a tag, a task written in Python, lm-eval not here.
    """
    package = importlib.util.find_spec("lm_eval")
    folders = [Path(include_path)] if include_path and Path(include_path).is_dir() else []
    folders += [Path(package.origin).parent / "tasks"] if package is not None and package.origin else []
    if not folders or (include_path and len(folders) < 2):
        return None
    paths = {path: stem for folder in folders for path, stem in _yaml_files(folder).items()}
    # a task is nearly always in a file or a folder whose name begins as its own: all 14,000 are read for the rest only
    word, quoted = _plain(name), rf"[\"']?{re.escape(name)}[\"']?[ \t]*(?:#.*)?$"
    first, last = word.partition("_")[0], word[-3:]  # siqa: social_iqa
    declares = re.compile(rf"^[\"']?task[\"']?[ \t]*:[ \t]*{quoted}", re.MULTILINE)
    is_group = re.compile(rf"^[\"']?(?:group|tag)[\"']?:(?:\s*-[^\n]*\n)*[\s-]*{quoted}", re.MULTILINE)
    mentioned = False
    for path in sorted(paths, key=lambda path: (paths[path] != word, first not in path, last not in path)):
        if name not in (text := _text(path)):
            continue
        if declares.search(text):
            is_useless = trains and not _may_train(Path(path))
            hint = "fine-tuning needs a training_split: leave it out of that study."
            return Refusal("has no training split", hint) if is_useless else None
        if is_group.search(text):
            return None
        mentioned = mentioned or re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None
    if mentioned:
        return None
    names = {declared for path in paths for line in (TASK_LINE, GROUP_LINE) for declared in line.findall(_text(path))}
    similar = nearest(name, names)
    hint = f"did you mean {similar!r}? " if similar else ""
    return Refusal("no lm-eval task has this name", f"{hint}`lm-eval ls tasks` lists them.")


def _may_train(path: Path) -> bool:
    """Whether a task's YAML file, or one that it includes, names a training split, is a corpus, or is written in
    Python."""
    files = [path, *(file for file in named_files([path]) if file.suffix != ".py")]
    text = "\n".join(map(_text, map(str, files)))
    says = (
        r"training_split[\"']?[ \t]*:[ \t]*(?!null|~|$)\S",
        r"class[\"']?[ \t]*:",
        r"output_type[\"']?[ \t]*:[ \t]*[\"']?loglikelihood_rolling",
    )
    return any(re.search(rf"(?:^|[{{,])[ \t]*[\"']?{word}", text, re.MULTILINE) for word in says)


@cache
def _yaml_files(folder: Path) -> dict[str, str]:
    """The files below a folder that may declare tasks, and what they are called, as tasks are."""
    return {
        f"{parent}/{name}": _plain(name.removesuffix(".yaml"))
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(".yaml") or "." not in name
    }


@cache
def _text(path: str) -> str:
    """The text of a file; none of a link to one that is gone."""
    return Path(path).read_text(encoding="utf-8-sig", errors="replace") if os.path.isfile(path) else ""


def _plain(name: str) -> str:
    """A name as folders, files and tasks are likely to share it."""
    return name.lower().replace("-", "_").lstrip("_")
