"""Our scores of real models on real benchmarks against lm-eval run as itself, document by document."""

import logging
import time

import lm_eval
import numpy as np
import pytest
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tests.real.conftest import DOCUMENTS, MODELS

from lm_validity.cells.tasks.evaluation import prepare_requests, score_prepared
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.tasks import fetch_documents, load_task, rows

pytestmark = pytest.mark.real


ANSWERS, TOKENS = 16, 96  # written answers a model and prompt, and their greatest length


def lm_eval_itself(lm, tasks, name: str, limit: int | None, chat: bool, **more) -> tuple[dict, list[dict]]:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=lm.base, tokenizer=lm.tokenizer, batch_size=8, max_length=1024),
        tasks=[name],
        num_fewshot=0,
        limit=limit,
        bootstrap_iters=0,
        apply_chat_template=chat,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        **more,
    )
    return found["results"][name], sorted(found["samples"][name], key=lambda sample: sample["doc_id"])


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize("benchmark", ["arc_easy", "arc_challenge", "openbookqa", "boolq"])
@pytest.mark.parametrize("model", MODELS)
def test_no_answer_differs_from_lm_evals(load, tasks, seen, model, benchmark, chat):
    # lm-eval puts nothing between a chat prompt and the answer
    lm = load(model)
    lm.answer_start = ""
    if chat and lm.tokenizer.chat_template is None:
        pytest.skip("a base model")
    name = f"real_{benchmark}"
    task = load_task(find_task(name, str(tasks)))
    number = min(DOCUMENTS or len(rows(task, "test")), len(rows(task, "test")))
    documents = fetch_documents(task, "test", [f"test:{row}" for row in range(number)])
    start = time.process_time()
    requests = prepare_requests(lm, task, documents, prompt="chat" if chat else "plain")
    ours = score_prepared(lm, requests, metric="acc_norm,none")
    own_seconds = time.process_time() - start
    results, samples = lm_eval_itself(lm, tasks, name, number, chat)
    found = [np.array(values) for values in ours.items["choice_loglikelihoods"]]
    theirs = [np.array([float(answer[0][0]) for answer in sample["resps"]]) for sample in samples]
    largest = max(np.abs(one - other).max() for one, other in zip(found, theirs, strict=True))
    differ = sum(one.argmax() != other.argmax() for one, other in zip(found, theirs, strict=True))
    value, error = ours.metrics["acc_norm,none"]
    figures = {"documents": number, "acc_norm": value, "stderr": error, "nats": largest}
    seen(model=model, benchmark=benchmark, chat=chat, own_seconds=round(own_seconds, 1), **figures)
    assert largest < 1e-3 and differ == 0
    assert ours.metrics["acc,none"][0] == pytest.approx(results["acc,none"])
    assert value == pytest.approx(results["acc_norm,none"])


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize("model", MODELS)
def test_written_answers_are_lm_evals_to_the_letter(load, tasks, seen, model, chat):
    """The first questions of GSM8K."""
    lm = load(model, max_generated_tokens=TOKENS)
    lm.answer_start = ""
    if chat and lm.tokenizer.chat_template is None:
        pytest.skip("a base model")
    number = min(DOCUMENTS or ANSWERS, ANSWERS)
    task = load_task(find_task("real_gsm8k", str(tasks)))
    documents = fetch_documents(task, "test", [f"test:{row}" for row in range(number)])
    start = time.process_time()
    requests = prepare_requests(lm, task, documents, prompt="chat" if chat else "plain")
    ours = score_prepared(lm, requests, metric="exact_match,strict")
    own_seconds = time.process_time() - start
    results, samples = lm_eval_itself(lm, tasks, "real_gsm8k", number, chat, gen_kwargs=f"max_gen_toks={TOKENS}")
    strict = [sample for sample in samples if sample["filter"] == "strict"]
    shares = {name: ours.metrics[f"exact_match,{name}"][0] for name in ("strict", "flexible")}
    seen(model=model, benchmark="gsm8k", chat=chat, own_seconds=round(own_seconds, 1), documents=number, **shares)
    assert list(ours.items["response"]) == [sample["resps"][0][0] for sample in strict]
    assert shares == {name: pytest.approx(results[f"exact_match,{name}"]) for name in shares}
