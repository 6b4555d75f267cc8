"""Our scores against `lm_eval.simple_evaluate` run as itself, for every output type and prompt."""

import logging

import lm_eval
import numpy as np
import pytest
from lm_eval.tasks import TaskManager
from toy_world import load_toy

from lm_validity.cells.evaluation import evaluate
from lm_validity.cells.tasks import Documents, fetch_documents, rows


def all_documents(task, kind: str = "test") -> Documents:
    return fetch_documents(task, kind, [f"{kind}:{row}" for row in range(len(rows(task, kind)))])


def lm_eval_itself(folder, tasks, name: str, *, chat: bool = False, **model_args) -> tuple[dict, list[dict]]:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": "float32", **model_args},
        tasks=[name],
        num_fewshot=0,
        device="cpu",
        batch_size=8,
        bootstrap_iters=1000,
        apply_chat_template=chat,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )
    return found["results"][name], found["samples"][name]


METRICS = {
    "toy_choice": "acc,none",
    "toy_cola": "mcc,none",
    "toy_blank": "acc,none",
    "toy_generation": "exact_match,stripped",
    "toy_corpus": "bits_per_byte,none",
}
CASES = [
    (kind, name, prompt)
    for kind, prompt in (("llama", "plain"), ("llama", "chat"), ("gpt2", "plain"))
    for name in METRICS
    if not (prompt == "chat" and name == "toy_corpus")
]


@pytest.mark.parametrize(("kind", "name", "prompt"), CASES)
def test_equals_lm_eval(kind, name, prompt, model_folders, toy_folder, toy_task):
    # a document of a corpus gets one BOS: lm-eval's own setting for that is add_bos_token=False
    rolling = {"add_bos_token": False} if name == "toy_corpus" else {}
    expected, samples = lm_eval_itself(model_folders[kind], toy_folder, name, chat=prompt == "chat", **rolling)
    task = toy_task(name)
    found = evaluate(load_toy(model_folders[kind]), task, all_documents(task), metric=METRICS[name], prompt=prompt)

    assert found.n_items == expected["sample_len"] == 14
    keys = {key for key in expected if "," in key and "_stderr," not in key}
    assert set(found.metrics) == keys
    for key, (value, stderr) in found.metrics.items():
        metric, _, filter_name = key.partition(",")
        assert value == expected[key]
        theirs = expected[f"{metric}_stderr,{filter_name}"]
        assert stderr == (None if theirs == "N/A" else theirs)
    for row, sample in zip(found.items.itertuples(), samples, strict=True):
        assert row.doc_id == f"test:{sample['doc_id']}"
        if name == "toy_generation":
            assert row.response == sample["resps"][0][0]
        elif name == "toy_corpus":
            np.testing.assert_allclose(row.choice_loglikelihoods, [sample["resps"][0][0]], atol=1e-4)
        else:
            theirs = [loglikelihood for ((loglikelihood, _),) in sample["resps"]]
            ours = row.choice_loglikelihoods + (row.unconditional_loglikelihoods or [])
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
