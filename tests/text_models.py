"""A tokenizer made on the spot: byte-level, with special tokens and a chat template."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
BYTE_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(extra: tuple[str, ...] = (), chat_template: str | None = None):
    """A byte-level tokenizer: the 256 bytes, some longer pieces, and special tokens."""
    pieces = [*BYTE_ALPHABET, *extra]
    model = models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", chat_template=chat_template
    )
