"""Streamed text joins to the one-shot decode; stops do not depend on rounds; chat prompts."""

from __future__ import annotations

import random

import pytest
from text_models import CHATML, byte_level
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, tokenization_utils_base

from dart_core.errors import ArenaError
from dart_core.text import (
    IncrementalDetokenizer,
    StopChecker,
    TextStream,
    answer_text,
    chat_prompt_ids,
    full_decode,
    raw_prompt_ids,
)


def metaspace(decoder):
    """A sentencepiece-like tokenizer: words with their space in front, and the bytes."""
    pieces = ["<unk>", "▁", "▁hello", "▁world", "lo", "!", "▁▁", "é", "▁漢"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    model = models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def llama_decoder():
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


TOKENIZERS = {
    "byte-level": lambda: byte_level(("Ġhello", "Ġworld", "ðŁ", "ĠðŁ", "é")),
    "llama": lambda: metaspace(llama_decoder()),
    "metaspace": lambda: metaspace(
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ),
    "word-piece": lambda: metaspace(decoders.WordPiece(prefix="lo")),
}


def stream(detokenizer, ids, generator) -> tuple[list[str], str]:
    """The ids in rounds of random sizes; what each round showed, and the flush."""
    parts, at = [], 0
    while at < len(ids):
        size = generator.randint(1, 5)
        parts.append(detokenizer.push(ids[at : at + size]))
        at += size
    return parts, detokenizer.finish()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_stream_joins_to_the_one_shot_decode(name):
    """Random ids are the hardest input: broken characters, special tokens and byte runs."""
    tokenizer = TOKENIZERS[name]()
    generator = random.Random(name)
    texts = ["hello world 🎉é漢!", "ok", "  hello"]
    for _ in range(300):
        if generator.random() < 0.3:
            ids = [i for text in generator.choices(texts, k=3) for i in tokenizer.encode(text)]
        else:
            ids = [generator.randrange(len(tokenizer)) for _ in range(generator.randint(0, 70))]
        if generator.random() < 0.5:
            ids = [i for i in ids for _ in range(generator.choice((1, 1, 3)))]
        detokenizer = IncrementalDetokenizer(tokenizer)
        parts, end = stream(detokenizer, ids, generator)
        assert "".join(parts) + end == full_decode(tokenizer, ids)
        assert detokenizer.finish() == ""  # flushed once, and ready for the next text
        assert answer_text(tokenizer, ids) == full_decode(tokenizer, ids)


@pytest.mark.parametrize("name", ["byte-level", "llama"])
def test_special_token_in_the_middle(name):
    tokenizer = TOKENIZERS[name]()
    hello, special = (tokenizer.convert_tokens_to_ids(p) for p in (("Ġhello", "▁hello"), "<s>"))
    hello = next(i for i in hello if i is not None and i != tokenizer.unk_token_id)
    ids = [special, hello, special, hello, special]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(detokenizer.push([i]) for i in ids) == full_decode(tokenizer, ids)
    assert full_decode(tokenizer, ids).strip() == "hello hello"


def test_special_tokens_are_shown_on_request():
    tokenizer = TOKENIZERS["byte-level"]()
    ids = tokenizer.convert_tokens_to_ids(["<s>", "a", "</s>"])
    assert IncrementalDetokenizer(tokenizer, skip_special_tokens=False).push(ids) == "<s>a</s>"


def test_character_split_across_rounds():
    """Rounds of 2, 3 and 1 bytes, so that the emoji straddles a boundary; an end inside it."""
    tokenizer = byte_level()
    ids = tokenizer.encode("ok 🎉é漢")
    assert len(ids) == len("ok 🎉é漢".encode())
    for cut in (len(ids), 5):  # 5: "ok " and two of the emoji's four bytes
        detokenizer, parts, at = IncrementalDetokenizer(tokenizer), [], 0
        for size in (2, 3, 1, 2, 3, 1):
            parts.append(detokenizer.push(ids[at : min(at + size, cut)]))
            at += size
        assert not any("\ufffd" in part for part in parts)
        end = detokenizer.finish()
        assert "".join(parts) + end == full_decode(tokenizer, ids[:cut])
        assert end == ("" if cut == len(ids) else "\ufffd")
        assert detokenizer.finish() == ""


class CountingTokenizer:
    """Counts the ids that are decoded."""

    def __init__(self, tokenizer):
        self._tokenizer, self.decoded = tokenizer, 0

    def decode(self, ids, **kwargs):
        self.decoded += len(ids)
        return self._tokenizer.decode(ids, **kwargs)

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_cost_is_linear(name):
    tokenizer = CountingTokenizer(TOKENIZERS[name]())
    ids = tokenizer.convert_tokens_to_ids(["lo", "!", "▁hello", "▁world"] * 250)
    ids = [i for i in ids if i is not None] or list(range(1000))
    IncrementalDetokenizer(tokenizer).push(ids)
    assert tokenizer.decoded < 25 * len(ids)


# Stop strings


def ha_tokenizer():
    tokenizer = byte_level(("Ġha",))
    return tokenizer, tokenizer.convert_tokens_to_ids("Ġha")


def all_cuts(ids):
    """The ids as one round, token by token, and in two rounds at every place."""
    yield [ids]
    yield [[i] for i in ids]
    yield from ([ids[:k], ids[k:]] for k in range(1, len(ids)))


def test_stop_string_inside_one_round():
    tokenizer, ha = ha_tokenizer()
    ids = [*tokenizer.encode("x"), ha, ha, ha, *tokenizer.encode("more")]
    checker = StopChecker(tokenizer, [" ha ha"])
    count = next(n for n, token in enumerate(ids, 1) if checker.push(token))
    assert ids[:count] == ids[:3]  # the output ends with the token that completes it
    for rounds in all_cuts(ids):
        for include, right in ((False, "x"), (True, "x ha ha")):
            text = TextStream(tokenizer, [" ha ha"], include)
            shown = "".join(text.push(round_) for round_ in rounds)
            assert text.stopped
            assert shown == right
            assert text.finish() == ""
    assert answer_text(tokenizer, ids[:count], [" ha ha"]) == "x"


def test_nothing_shown_is_taken_back():
    tokenizer = byte_level()
    text = TextStream(tokenizer, ["END", "ENOUGH"])
    shown = [text.push([i]) for i in tokenizer.encode("a ENDURE? E EN END z")]
    assert not text.stopped or "".join(shown) == "a "
    text = TextStream(tokenizer, ["ENDING"])
    parts = [text.push([i]) for i in tokenizer.encode("a END")]
    assert parts == ["a", " ", "", "", ""]  # may still become the stop string
    assert text.finish() == "END"


def test_random_stops_match_a_plain_search():
    tokenizer = byte_level(("aa", "ab", "ba"))
    generator = random.Random(5)
    for _ in range(300):
        ids = [tokenizer.convert_tokens_to_ids(generator.choice(["a", "b", "aa", "ab", "ba"]))]
        ids *= generator.randint(1, 3)
        ids += tokenizer.convert_tokens_to_ids(generator.choices(["a", "b", "aa", "ab"], k=12))
        stops = ["".join(generator.choices("ab", k=generator.randint(2, 5))) for _ in range(2)]
        stream_, shown, count = TextStream(tokenizer, stops), "", 0
        while count < len(ids) and not stream_.stopped:
            shown += stream_.push([ids[count]])
            count += 1
        shown += stream_.finish()
        whole = full_decode(tokenizer, ids[:count])
        ends = [whole.find(s) + len(s) for s in stops if s in whole]
        assert stream_.stopped == bool(ends)
        assert not any(s in full_decode(tokenizer, ids[: count - 1]) for s in stops)
        assert not any(s in shown for s in stops)
        assert whole.startswith(shown)
        assert ends or shown == whole


def test_stop_string_of_bytes_and_special_tokens():
    tokenizer = TOKENIZERS["llama"]()
    ids = tokenizer.convert_tokens_to_ids(["▁hello", "<0xE2>", "<0x82>", "<0xAC>", "<0xE6>"])
    checker = StopChecker(tokenizer, ["€"])
    assert [checker.push(i) for i in ids] == [False, False, False, True, True]
    assert answer_text(tokenizer, ids[:4], ["€"]) == "hello"
    tokenizer = byte_level()
    ids = [*tokenizer.encode("ab"), tokenizer.eos_token_id, *tokenizer.encode("c")]
    checker = StopChecker(tokenizer, ["</s>"])
    assert [checker.push(i) for i in ids[:3]] == [False, False, True]
    assert answer_text(tokenizer, ids, ["</s>"]) == "ab"


@pytest.mark.parametrize("stops", ["lone", [""], [3]])
def test_bad_stops(stops):
    with pytest.raises(ArenaError, match="stop string"):
        TextStream(byte_level(), stops)


# Prompts


def test_chat_prompt():
    tokenizer = byte_level(chat_template=CHATML)
    messages = [{"role": "user", "content": "hé"}]
    ids = chat_prompt_ids(tokenizer, messages, system_prompt="be kind")
    assert all(type(i) is int for i in ids)
    assert tokenizer.decode(ids) == (
        "<s>system\nbe kind</s>\n<s>user\nhé</s>\n<s>assistant\n<think></think>"
    )
    ids = chat_prompt_ids(tokenizer, messages, enable_thinking=True)
    assert tokenizer.decode(ids) == "<s>user\nhé</s>\n<s>assistant\n"
    own = [{"role": "system", "content": "mine"}, *messages]
    assert "kind" not in tokenizer.decode(chat_prompt_ids(tokenizer, own, system_prompt="kind"))


def test_chat_prompt_without_a_template_names_the_remedy():
    with pytest.raises(ArenaError, match="--raw"):
        chat_prompt_ids(byte_level(), [{"role": "user", "content": "x"}])


def test_template_that_refuses():
    tokenizer = byte_level(chat_template="{{ raise_exception('no system role') }}")
    with pytest.raises(ArenaError, match="no system role"):
        chat_prompt_ids(tokenizer, [{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "non-empty list"),
        ("hello", "non-empty list"),
        (["hello"], "message 1"),
        ([{"role": "human", "content": "x"}], "role 'human'"),
        ([{"role": "user", "content": None}], "text as its content"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "last message"),
    ],
)
def test_malformed_messages(messages, says):
    with pytest.raises(ArenaError, match=says):
        chat_prompt_ids(byte_level(chat_template=CHATML), messages)


def test_raw_prompt_is_taken_as_it_stands():
    tokenizer = byte_level()
    assert tokenizer.decode(raw_prompt_ids(tokenizer, "<s>a b")) == "<s>a b"


def test_a_long_prompt_is_not_told_twice(monkeypatch):
    """The engine says what is too long, and for what; transformers would say it of any length."""
    tokenizer, told = byte_level(chat_template=CHATML), []
    tokenizer.model_max_length = 4
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", lambda *a: told.append(a))
    assert len(raw_prompt_ids(tokenizer, "a b c d e")) == 9
    assert len(chat_prompt_ids(tokenizer, [{"role": "user", "content": "a b c"}])) > 9
    assert not told
    tokenizer.encode("a b c d e")
    assert told  # or this test sees nothing
