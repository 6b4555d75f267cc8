"""A local causal language model as judge of single questions (see `lm_validity.studies.signal.filters.recipe`)."""

import hashlib
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm_validity.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LocalJudge:
    """Answers prompts with a model read from a local folder: greedy first, sampled in repetitions.

    The prompt goes through the tokenizer's chat template where it has one. Samples are seeded by prompt and
    repetition and leave the global random state as it was.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dtype: str,
        device: str = "cpu",
        temperature: float = 0.7,
        max_new_tokens: int = 8,
    ):
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            self.model = AutoModelForCausalLM.from_pretrained(
                str(path), local_files_only=True, use_safetensors=True, dtype=DTYPES[dtype]
            )
        except KeyError as error:
            raise InputError(f"dtype {dtype!r} is not known.", f"one of {', '.join(DTYPES)}.") from error
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: no model could be loaded ({error}).",
                "give a folder in Hugging Face format with safetensors.",
            ) from error
        self.model.to(device).eval()
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens

    @torch.inference_mode()
    def __call__(self, prompt: str, repetition: int) -> str:
        """The model's reply, without the prompt."""
        tokens = self._encode(prompt).to(self.model.device)
        sampling = {"do_sample": False} if repetition == 0 else {"do_sample": True, "temperature": self.temperature}
        seed = int.from_bytes(hashlib.sha256(f"{repetition}\0{prompt}".encode()).digest()[:7], "big")
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            output = self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=self.max_new_tokens,
                pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id or 0,
                **sampling,
            )
        return self.tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)

    def _encode(self, prompt: str) -> torch.Tensor:
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
            return self.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        return self.tokenizer(prompt, return_tensors="pt")["input_ids"]
