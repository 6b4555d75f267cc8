"""Shared by the rules that prefetch: what a model, a benchmark or a task is made from."""


def model_source(wildcards):
    """input: the files of a model's folder that the workflow makes, and the note that its files changed."""
    note = note_of_change("models", wildcards.model)
    if RUN.configuration.replay:
        return note
    row = RUN.models[wildcards.model]
    files = made_files(row.path)
    for adapter in row.adapters:
        files = files + made_files(adapter, "adapter_config.json")
    return files + note


def made_files(path, first="config.json"):
    """The files of a model's or adapter's folder that a rule makes; nothing for a hub id and the user's own, whose
    changes `note_changes` finds."""
    if path.startswith(f"{RESULTS}/miniature/"):
        return [f"{path}/config.json", f"{path}/model.safetensors"]
    # another rule's, which may have made several weight files
    return [f"{path}/{first}"] if path.startswith(f"{RESULTS}/") else []


def note_of_change(kind, name):
    """The note that the files of a record are others than it is of; nothing where there is none."""
    note = inputs.note_of(RUN.results, kind, name)
    return [str(note)] if Path(with_prefix(note)).is_file() else []


def tuned_from(wildcards):
    """input: the finished model of the miniature that a tuned one goes on from; nothing for all others."""
    parent = POOL[wildcards.model].tuned_from if wildcards.model in POOL else None
    return [f"{RESULTS}/miniature/models/{parent}/model.safetensors"] if parent else []


def benchmark_source(wildcards):
    """input: the task files that the workflow makes, and the note that the user's own changed."""
    row, note = RUN.benchmarks[wildcards.benchmark], note_of_change(
        "benchmarks", wildcards.benchmark
    )
    if RUN.configuration.replay or row.corpus or row.include_path is None:
        return note
    if row.include_path.startswith(f"{RESULTS}/miniature/"):
        return [
            f"{RESULTS}/miniature/world.json",
            f"{row.include_path}/{row.task}.yaml",
            *note,
        ]
    return note


def own_documents(wildcards):
    """input: the test documents of the benchmark that a row is another wording of, to be compared; else nothing."""
    own = RUN.benchmarks[wildcards.benchmark].variant_of
    return f"{RESULTS}/splits/{own}/test.json" if own else []


def checkpoints_of(wildcards):
    """params: where a model's checkpoints and adapters are."""
    model = RUN.models[wildcards.model]
    places = [
        f"{one.checkpoint}:{one.revision or ''}:{one.subfolder or ''}"
        for one in model.checkpoints
    ]
    return " ".join([*places, *model.adapters])


def task_source(wildcards):
    """input: a file of the bias study that another rule makes, and the note that the user's own changed."""
    path = RUN.tasks[wildcards.task].path
    made = [path] if path.startswith(f"{RESULTS}/") else []
    return made + note_of_change("tasks", wildcards.task)
