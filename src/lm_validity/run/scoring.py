"""Which settings and files enter the recipe of every score."""

import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypedDict

from lm_validity.config.load import Run
from lm_validity.errors import InputError, first_line
from lm_validity.run.cell import Recipe

# ----------------------------------------------------------------------------------------------------------------------
# The files that determine what lm-eval tasks compute, found by a text scan.
#
# Standard library only: the Snakefile lists them at parse time.

# `include: one.yaml`, `include: [one.yaml, two.yaml]`, a list of lines below, and all of these in JSON
_INCLUDE = re.compile(r"(?:^|[{,])[ \t]*[\"']?include[\"']?[ \t]*:([^\n]*(?:\n[ \t]*[-\[\]\"'][^\n]*)*)", re.MULTILINE)
# what a YAML file declares: a task, unless it is a group's file
TASK_LINE, GROUP_LINE = (
    re.compile(rf"^[\"']?{word}[\"']?:[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE) for word in ("task", "group")
)
MOST_FILES = 1000  # of a folder below which all files are sources; scanning more would hold up every start
_FUNCTION = re.compile(r"!function[ \t]+[\"']?([^\s\"'#,\]}]+)")


def code_file(folder: Path, function: str) -> Path:
    """Where lm-eval looks for `!function <function>` of a YAML file in `folder`: `lib.scoring.exact` is `exact` of
    lib/scoring.py."""
    return folder / f"{function.rpartition('.')[0].replace('.', '/')}.py"


def python_files(folder: Path) -> list[Path]:
    """Every Python file under a folder, in the order of their paths within it; hidden folders are left out."""
    return _files(folder, ".py")


@cache
def task_sources(folder: str) -> list[str]:
    """The files of a folder of tasks: those directly in it, all YAML and Python files below, and the YAML files
    elsewhere that they include, with the code that those name. A folder that is not there has none.

    Of a folder with more than MOST_FILES below it, a copy of lm-eval's own tasks say, only those directly in it: a job
    whose task changed after it was recorded stops and says so.
    """
    root = Path(folder)
    if not root.is_dir():
        return []
    files = {path for path in root.iterdir() if path.is_file() and not path.name.startswith(".")}
    below = [*_files(root, ".yaml"), *python_files(root)]
    if len(below) > MOST_FILES:
        return sorted(map(str, files))
    files |= {*below}
    files |= named_files(path for path in files if path.suffix == ".yaml")
    return sorted(map(str, files))


def named_files(paths: Iterable[Path]) -> set[Path]:
    """The YAML files that YAML files include, and that those include, with the code that all of them name."""
    queue, files, seen = [*paths], set(), set()
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        blocks = (re.sub(r"(^|\s)#.*", "", block) for block in _INCLUDE.findall(text))
        names = (name for block in blocks for name in re.findall(r"[^\s\"',\[\]{}]+", block) if name != "-")
        included = {
            included_path for name in names if (included_path := Path(os.path.normpath(path.parent / name))).is_file()
        }
        code = {code_file(path.parent, function) for function in _FUNCTION.findall(text)}
        files |= included | {included_path for included_path in code if included_path.is_file()}
        queue += included
    return files


def named_code(path: Path) -> list[str]:
    """The functions that a task's YAML file, and those that it includes, have lm-eval run, with their files: `exact of
    tasks/scoring.py`. By YAML's own reading: a tag can be written in many ways. Raises InputError for no YAML."""
    import yaml

    names_found = []
    for file in sorted(file_path for file_path in {path, *named_files([path])} if file_path.suffix != ".py"):
        try:
            for event in yaml.parse(file.read_text(encoding="utf-8-sig", errors="replace")):
                if isinstance(event, yaml.ScalarEvent) and event.tag == "!function":
                    names_found.append(f"{event.value.rpartition('.')[2]} of {code_file(file.parent, event.value)}")
        except yaml.YAMLError as error:
            raise InputError(f"{file}: not YAML ({first_line(error)}).", "correct the file.") from None
    return list(dict.fromkeys(names_found))


def _files(folder: Path, suffix: str) -> list[Path]:
    files = []
    for folder_path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(folder_path, name) for name in names if name.endswith(suffix) and not name.startswith("."))
        files += [path for path in paths if path.is_file()]  # no link to a file that is gone
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


# ----------------------------------------------------------------------------------------------------------------------
# What the configuration and the sheets say that can change a benchmark's score, whatever rule computes it.
#
# Batch sizes and devices are not in it. Standard library and pydantic only: the Snakefile asks at parse time.


def scoring_settings(run: Run, model: str, benchmark: str, prompt: str) -> Recipe:
    """Settings that enter the recipe of every cell that scores documents of a benchmark."""
    evaluation, row = run.configuration.evaluation, run.benchmarks[benchmark]
    settings: Recipe = {
        "metric": row.metric,  # each item's own value is that of this metric
        "prompt": prompt,
        "dtype": run.models[model].dtype,
        "evaluation_max_length": evaluation.max_length,
    }
    if evaluation.max_length:
        settings["limited_to"] = "the model's own length"  # before, past it: other cells
    if prompt == "chat":
        settings["system_instruction"] = evaluation.system_instruction
        settings["chat_answer_start"] = "template"
    settings |= prompt_settings(run, benchmark)
    if row.output_type == "generate_until":
        settings["max_generated_tokens"] = evaluation.max_generated_tokens
        settings["answers_end"] = "each by itself"  # before, with the last of their batch: other cells
    if row.output_type == "loglikelihood_rolling":
        settings["document_bos"] = run.models[model].document_bos
    return settings


def sampling_runs(run: Run, benchmark: str, split: str) -> tuple[int | None, ...]:
    """The runs of a benchmark on a split: (None,) where its answers are not sampled."""
    generation = run.configuration.evaluation.generation
    sampled = generation is not None and split == "test" and run.benchmarks[benchmark].output_type == "generate_until"
    return tuple(range(generation.runs)) if generation is not None and sampled else (None,)


def sampling_settings(run: Run, sampled_run: int | None) -> Recipe:
    """What a recipe says of sampled answers; nothing where they are not sampled."""
    generation = run.configuration.evaluation.generation
    if generation is None or sampled_run is None:
        return {}
    return {"temperature": generation.temperature, "top_p": generation.top_p, "run": sampled_run}


class PromptSettings(TypedDict, total=False):
    """What the sheet says about a benchmark's requests, where it is not the default."""

    num_fewshot: int
    mutual_information: bool


def prompt_settings(run: Run, benchmark: str) -> PromptSettings:
    """What enters the recipe of a benchmark's cells, and builds its task (`load_task`)."""
    row, settings = run.benchmarks[benchmark], PromptSettings()
    if row.num_fewshot:
        settings["num_fewshot"] = row.num_fewshot
    if row.mutual_information:
        settings["mutual_information"] = row.mutual_information
    return settings
