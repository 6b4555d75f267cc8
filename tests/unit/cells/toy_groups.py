"""Local tasks in groups, for tests of groups and few-shot prompts."""

import json
from pathlib import Path

from toy_world import toy_rows

SIZES = {"alpha": 14, "beta": 9, "gamma": 5}
TASK = """
task: pets_{name}
tag: pets_tag
dataset_path: json
dataset_kwargs: {files}
output_type: multiple_choice
description: "About {name}.\\n\\n"
doc_to_text: "Question: what is the color of {{{{name}}}}?\\nAnswer:"
doc_to_choice: choices
doc_to_target: gold
training_split: train
test_split: test
fewshot_split: train
{more}
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
GROUPS = {
    # a nested group with a file of its own, an inline one, and an override of a task's settings
    "pets": """
group: pets
task:
  - pets_inner
  - group: inline
    task: [{task: pets_gamma, description: "About small ones."}]
aggregate_metric_list: [{metric: acc, weight_by_size: true}, {metric: acc_norm, weight_by_size: false}]
metadata: {version: 3}
""",
    "pets_inner": "group: pets_inner\ntask: [pets_alpha, pets_beta]\n",
    "pets_mixed": "group: pets_mixed\ntask: [pets_alpha, pets_written]\n",
    "pets_broken": "group: pets_broken\ntask: [pets_alpha, pets_omega]\n",
}
WRITTEN = "task: pets_written\noutput_type: generate_until\ndataset_path: json\n"


def write_pets(folder: Path) -> Path:
    """Three tasks of unequal size over local JSON lines; `beta` shows the first examples, the others draw them."""
    for name, size in SIZES.items():
        files = {split: str(folder / "data" / name / f"{split}.jsonl") for split in ("train", "test")}
        for split in files:
            found = [{**row, "name": f"{row['name']}{name}"} for row in toy_rows(split)]
            (folder / "data" / name).mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row) + "\n" for row in found[: size if split == "test" else 12]]
            (folder / "data" / name / f"{split}.jsonl").write_text("".join(lines))
        more = "fewshot_config: {sampler: first_n}" if name == "beta" else ""
        text = TASK.format(name=name, files=json.dumps({"data_files": files}), more=more)
        (folder / f"pets_{name}.yaml").write_text(text.lstrip())
    for name, text in GROUPS.items():
        (folder / f"{name}.yaml").write_text(text.lstrip())
    (folder / "written.yaml").write_text(WRITTEN)
    return folder
