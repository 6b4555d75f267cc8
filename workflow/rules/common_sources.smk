"""Shared by the rules that prefetch: what a model, a benchmark or a task is made from."""


def model_source(wildcards):
    """input: the files of a folder that the workflow makes, or of a local one; nothing for a hub id."""
    if RUN.configuration.replay:
        return from_user(RUN.configuration.replay.scores)
    row = RUN.models[wildcards.model]
    files = folder_files(row.path)
    for adapter in row.adapters:
        files = files + folder_files(adapter, "adapter_config.json")
    return files


def folder_files(path, first="config.json"):
    """The files of a model's or adapter's folder; nothing for a hub id."""
    if path.startswith(f"{RESULTS}/miniature/"):
        return [f"{path}/config.json", f"{path}/model.safetensors"]
    if path.startswith(f"{RESULTS}/"):
        # another rule's, which may have made several weight files
        return [f"{path}/{first}"]
    folder = glob.escape(path)
    found = glob.glob(f"{folder}/*.json") + glob.glob(f"{folder}/*.safetensors")
    return [from_user(name) for name in sorted(found)]


def tuned_from(wildcards):
    """input: the finished model of the miniature that a tuned one goes on from; nothing for all others."""
    parent = POOL[wildcards.model].tuned_from if wildcards.model in POOL else None
    return [f"{RESULTS}/miniature/models/{parent}/model.safetensors"] if parent else []


def benchmark_source(wildcards):
    """input: the task files that the workflow makes, or local ones; nothing for a task shipped with lm-eval."""
    if RUN.configuration.replay:
        return from_user(RUN.configuration.replay.scores)
    row = RUN.benchmarks[wildcards.benchmark]
    if row.corpus:
        files = glob.glob(f"{glob.escape(row.corpus)}/**/*.txt", recursive=True)
        return [from_user(name) for name in sorted(files)] or local_file(row.corpus)
    if row.include_path is None:
        return []
    if row.include_path.startswith(f"{RESULTS}/miniature/"):
        return [
            f"{RESULTS}/miniature/world.json",
            f"{row.include_path}/{row.task}.yaml",
        ]
    return [from_user(name) for name in task_sources(row.include_path)]


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


def local_file(path):
    """The path where it is a file of a data set, which may be made first; nothing for a hub id."""
    if path.startswith(f"{RESULTS}/"):
        return path
    return from_user(path) if Path(path).is_file() else []
