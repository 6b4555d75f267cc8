"""Names of lm-eval tasks, as far as a text scan of the files tells: whether a task is there, and has documents to train
on. The Snakefile asks at parse time, so lm_eval is not imported, and a file is read only where it may be needed."""

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.errors import InputError, Problem, Refusal, nearest
from lm_validity.run.rules.base import Participants
from lm_validity.run.scoring import named_files

# what a YAML file declares: a task, unless it is a group's file
TASK_LINE, GROUP_LINE = (
    re.compile(rf"^[\"']?{word}[\"']?:[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE) for word in ("task", "group")
)


def task_problems(run: Run) -> Iterator[Problem]:
    """Tasks that do not exist, or have nothing to train on where a study fine-tunes; of benchmarks that were not
    fetched yet."""
    if run.configuration.replay:
        return
    participants = Participants(run)
    for name in participants.used_benchmarks:
        row = run.benchmarks[name]
        fetched = (run.results / f"prefetch/benchmarks/{name}.json").is_file()
        if row.corpus or fetched or run.is_miniature(row.include_path):
            continue
        refusal = task_problem(row.task, row.include_path, trains=not participants.is_test_only(name))
        if refusal is not None:
            yield Problem(f"benchmark {name} (task {row.task})", *refusal)


def check_tasks(run: Run) -> None:
    """Raises InputError for the first of `task_problems`: nothing can be planned with it."""
    for problem in task_problems(run):
        raise InputError(f"{problem.where}: {problem.description}.", problem.action)


def task_problem(name: str, include_path: str | None, *, trains: bool) -> Refusal | None:
    """(what is wrong with a task's name, what to do) as far as a text scan of the user's files, then of lm-eval's, can
    tell, without a network: no file has the name, or the one that declares it has no documents to train on.

    None where nothing is wrong, or it cannot be known: a group, a tag, a task written in Python, lm-eval not here.
    """
    package = find_spec("lm_eval")
    folders = [Path(include_path)] if include_path and Path(include_path).is_dir() else []
    folders += [Path(package.origin).parent / "tasks"] if package is not None and package.origin else []
    if not folders or (include_path and len(folders) < 2):
        return None
    searched = [_task_files(folder) for folder in folders]
    for files in searched:
        declaring = files.that_declare(name)
        if declaring and trains and not any(map(_may_train, declaring)):
            return Refusal("has no training split", "fine-tuning needs a training_split: leave it out of that study.")
        if declaring is not None:
            return None
    texts = [_text(path) for files in searched for path in files.paths]
    names = {declared for text in texts for line in (TASK_LINE, GROUP_LINE) for declared in line.findall(text)}
    similar = nearest(name, names)
    hint = f"did you mean {similar!r}? " if similar else ""
    return Refusal("no lm-eval task has this name", f"{hint}`lm-eval ls tasks` lists them.")


class _TaskFiles:
    """The YAML files of a folder of tasks, and what they include. A task is nearly always in a file of its own name or
    in a folder whose name its own begins with: these are read first, and all 14,000 of lm-eval's only for the rest."""

    def __init__(self, folder: Path):
        self.paths: list[str] = []
        self._of_name, self._below = dict[str, list[str]](), dict[str, list[str]]()
        for parent, _, names in os.walk(folder):
            paths = {name: f"{parent}/{name}" for name in names if name.endswith(".yaml") or "." not in name}
            self.paths += paths.values()
            for name in {*map(_plain, Path(parent).relative_to(folder).parts)}:
                self._below.setdefault(name, []).extend(paths.values())
            for name, path in paths.items():
                self._of_name.setdefault(_plain(name.removesuffix(".yaml")), []).append(path)

    def that_declare(self, name: str) -> list[Path] | None:
        """The files that declare a task; none where the name is a group's, a tag's, or in another place of a file; None
        where no file has it."""
        word, quoted = _plain(name), rf"[\"']?{re.escape(name)}[\"']?[ \t]*(?:#.*)?$"
        declares = re.compile(rf"^[\"']?task[\"']?:[ \t]*{quoted}", re.MULTILINE)
        is_group = re.compile(
            rf"^[\"']?(?:group|tag)[\"']?:[ \t]*(?:\n[ \t]*-[^\n]*)*?(?:\n[ \t]*-[ \t]*)?{quoted}", re.MULTILINE
        )
        is_word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
        named_so = sorted(filter(word.startswith, self._below), key=len, reverse=True)
        folders = [*named_so, *(folder for folder in self._below if folder.endswith(word[-3:]))]  # siqa: social_iqa
        likely = [self._of_name.get(word, ()), *(self._below[folder] for folder in folders)]
        for paths, sign in (*((paths, is_group) for paths in likely), (self.paths, is_word)):
            texts = {path: text for path in paths if name in (text := _text(path))}
            declaring = [Path(path) for path, text in texts.items() if declares.search(text)]
            if declaring or any(map(sign.search, texts.values())):
                return declaring
        return None


_task_files = cache(_TaskFiles)


@cache
def _text(path: str) -> str:
    """The text of a file; none of a link to one that is gone."""
    return Path(path).read_text(encoding="utf-8-sig", errors="replace") if os.path.isfile(path) else ""


def _plain(name: str) -> str:
    """A name as folders, files and tasks are likely to share it."""
    return name.lower().replace("-", "_").lstrip("_")


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
