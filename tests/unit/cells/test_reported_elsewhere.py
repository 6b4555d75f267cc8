"""What others reported of tokenizers, templates and answers, tried on a small model: against transformers by itself."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
import transformers
import yaml
from toy_world import load_toy, toy_model

from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.tasks import load_task

WORDS = ("red", "a color of blue and", "yes no yes")


def answered(folder, until, longest=24):
    options = {"until": until, "max_gen_toks": longest, "do_sample": False}
    return load_toy(folder).generate_until([SimpleNamespace(args=(word, options)) for word in WORDS])


def alone(folder, longest=24, **options):
    """The tokens that transformers' own generate writes behind each word by itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    written = []
    for word in WORDS:
        rows = tokenizer(word, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(rows.input_ids, max_new_tokens=longest, do_sample=False, pad_token_id=1, **options)
        written.append(tokenizer.decode(ids[0][rows.input_ids.shape[1] :]))
    return written


def changed(folder, **settings):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def test_the_side_on_which_a_tokenizer_pads_changes_no_answer(tmp_path):
    """Answers written together are those written alone, whatever tokenizer_config.json says of padding."""
    folder = changed(toy_model("llama", tmp_path), padding_side="right")
    wanted = [text.partition("</s>")[0] for text in alone(folder)]
    assert answered(folder, ["</s>"]) == wanted and len(set(wanted)) > 1


def test_blanks_before_punctuation_stay(tmp_path):
    """`clean_up_tokenization_spaces` would take them out of an answer."""
    lm = load_toy(changed(toy_model("llama", tmp_path), clean_up_tokenization_spaces=True))
    text = "x != y , he said . ok ?"
    assert lm.tok_decode(lm.tok_encode(text, add_special_tokens=False)) == text


def test_a_stop_string_that_is_a_special_token_ends_an_answer(tmp_path):
    """Decoding leaves special tokens out, so the string never stands in the decoded text."""
    folder = toy_model("llama", tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    first = tokenizer.encode(alone(folder)[0], add_special_tokens=False)[3]  # a token that the model does write
    named = tokenizer.convert_ids_to_tokens(first)
    tokenizer.add_special_tokens({"additional_special_tokens": [named]})
    tokenizer.save_pretrained(folder)
    wanted = [text.partition("</s>")[0].partition(tokenizer.decode([first]))[0] for text in alone(folder)]
    assert answered(folder, [tokenizer.decode([first])])[0] == wanted[0]


@pytest.mark.parametrize("turns", [1, 3])
def test_templates_whose_roles_must_alternate_take_solved_examples(tmp_path, turns):
    """Solved examples stand in one question, so a template that refuses two turns of one role refuses nothing."""
    lm = load_toy(toy_model("llama", tmp_path))
    lm.tokenizer.chat_template = (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m['content'] }}>{% endfor %}"
    )
    content = "\n\n".join(["question answer"] * (turns - 1) + ["question"])
    assert lm.apply_chat_template([{"role": "user", "content": content}]) == f"<{content}>"


def test_an_empty_question_has_one_beginning(tmp_path):
    """The answer's log-likelihood behind the tokenizer's own beginning of text, which is there once."""
    folder = toy_model("llama", tmp_path)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(" green and red", return_tensors="pt").input_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(ids).logits[0].log_softmax(-1)
    expected = sum(float(logits[place - 1, ids[0, place]]) for place in range(1, ids.shape[1]))
    lm = load_toy(folder)
    assert ids[0, 0] == lm.prefix_token_id and ids[0, 1] != lm.prefix_token_id
    request = SimpleNamespace(args=("", " green and red"))
    assert lm.loglikelihood([request])[0][0] == pytest.approx(expected, abs=1e-4)


def test_a_compressed_file_that_changed_is_read_again(tmp_path):
    """The data library keeps what it read of a file, under the file's name."""
    path = tmp_path / "quiz.jsonl.gz"
    keys = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": 0,
    }
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test"}
    (tmp_path / "quiz.yaml").write_text(yaml.safe_dump({"task": "compressed_quiz", **source, **keys}))
    for word in ("first", "second"):
        with gzip.open(path, "wt") as file:
            file.write(json.dumps({"q": word, "choices": ["a", "b"], "gold": 0}) + "\n")
        assert [doc["q"] for doc in load_task(find_task("compressed_quiz", tmp_path)).test_docs()] == [word]
