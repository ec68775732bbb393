"""Files of conversations and prompts as people have them: read, or refused with file and line."""

from __future__ import annotations

import gzip
import json

import pytest

from dart_core.errors import ArenaError
from dart_core.lfs import POINTER
from dart_core.training.answers import read_questions
from dart_core.training.data import TRAINED_ON, ChatEncoder, read_records
from dart_core.training.overlap import OverlapFilter
from dart_core.training.templates import Templates
from tests.test_training import CHAT, chat
from tests.text_models import byte_level

GOOD = {"messages": chat("hi", "hello")}


@pytest.fixture
def written(tmp_path):
    def write(*lines, name: str = "x.jsonl", before: bytes = b"", packed: bool = False) -> str:
        raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        data = before + b"".join(line + b"\n" for line in raw)
        (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
        return str(tmp_path / name)

    return write


def answer(content) -> dict:
    return {"messages": [chat("hi")[0], {"role": "assistant", "content": content}]}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"not JSON", "not JSON: Expecting value"),
        (b'{"text": ' + b"1" * 5000 + b"}", "not JSON: Exceeds the limit"),
        (b'{"text": ' + b"[" * 100_000, "not JSON: maximum recursion depth"),
        (b'["hi"]', "expected a JSON object"),
        (b'{"text": "\xe9"}', "is not UTF-8 text"),
        ({"text": 5}, "text must be a text, got 5"),
        ({"text": None, "id": 3}, "expected messages or text, got fields id"),
        ({"prompt": "hi"}, "got fields prompt; `train data` answers prompts"),
        ({"messages": "hi"}, "messages must be a list of one or more, got 'hi'"),
        ({"messages": []}, "messages must be a list of one or more, got []"),
        ({"messages": ["hi"]}, "message 1 must be an object, got 'hi'"),
        ({"messages": [{"content": "hi"}]}, "role of message 1 must be a text, got None"),
        ({"conversations": [{"from": "gpt"}]}, "content of message 1 must be a text, got None"),
        (answer(None), "content of message 2 must be a text, got None"),
        (answer([{"type": "text"}]), "content of message 2 must be a text, got [{"),
        (answer("\ud800"), "content of message 2 holds half a character"),
        ({"text": "\ud800"}, "text holds half a character"),
    ],
)
def test_a_line_that_is_no_conversation(line, says, written):
    path = written(GOOD, b"", line)
    with pytest.raises(ArenaError) as error:
        list(read_records([path], TRAINED_ON))
    assert f"{path}, line 3" in str(error.value)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"prompt": 5}, "prompt must be a text, got 5"),
        ({"prompt": ""}, "nothing that a user says"),
        ({"turns": "abc"}, "turns must be a list of one or more, got 'abc'"),
        ({"turns": ["a", 5]}, "turn 2 must be a text, got 5"),
        ({"messages": [{"role": "system", "content": "x"}]}, "nothing that a user says"),
        ({"text": "rendered"}, "expected prompt or turns or messages, got fields text"),
    ],
)
def test_a_line_that_is_no_prompt(line, says, written):
    path = written({"prompt": "hi"}, line)
    for read in (lambda: read_questions([path]), lambda: OverlapFilter([path])):
        with pytest.raises(ArenaError, match="line 2: ") as error:
            read()
        assert says in str(error.value)


def test_files_without_prompts(written):
    path = written(b"")
    with pytest.raises(ArenaError, match="no prompt to answer"):
        read_questions([path])
    with pytest.raises(ArenaError, match="no prompt to exclude"):
        OverlapFilter([path])
    assert read_questions([]) == []


def test_files_that_are_not_whole(written, tmp_path):
    packed = written(GOOD, name="x.jsonl.gz", packed=True)
    assert list(read_records([packed])) == [GOOD]
    whole = (tmp_path / "x.jsonl.gz").read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "broken.gz").write_bytes(whole[:15] + b"\xff" * 20)
    for path in (str(tmp_path / "cut.gz"), str(tmp_path / "broken.gz"), written(b"", name="y.gz")):
        with pytest.raises(ArenaError, match="is no whole gzip file") as error:
            list(read_records([path]))
        assert path in str(error.value)
    with pytest.raises(ArenaError, match=r"x\.jsonl is a Git LFS pointer"):
        list(read_records([written(POINTER + b".com/spec/v1")]))
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ArenaError, match="does not exist, or is no regular file"):
            list(read_records([path]))


def test_a_byte_order_mark_and_other_line_ends_are_left_out(written):
    crlf = json.dumps(GOOD).encode() + b"\r"
    assert list(read_records([written(crlf, crlf, before=b"\xef\xbb\xbf")])) == [GOOD, GOOD]


def test_shared_conversations_are_conversations(written):
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    path = written({"conversations": turns}, {"messages": turns}, {"conversations": chat("a")})
    assert list(read_records([path])) == [GOOD, GOOD, {"messages": chat("a")}]
    assert read_questions([path]) == ["hi", "hi", "a"]


def test_a_template_that_refuses_a_conversation_is_told():
    refuses = (
        "{% if messages[0]['role'] != 'user' %}{{ raise_exception('users first') }}{% endif %}"
    )
    encoder = ChatEncoder(byte_level(chat_template=refuses + CHAT))
    with pytest.raises(ArenaError, match=r"template refuses a conversation \(users first\): .*yo"):
        encoder.encode({"messages": [{"role": "assistant", "content": "yo"}]})


def test_an_answer_to_nothing_is_not_supervised():
    encoder = ChatEncoder(byte_level(chat_template=CHAT))
    first = {"role": "assistant", "content": "yo"}
    sequence = encoder.encode({"messages": [first, *chat("hi", "hello")]})
    assert encoder.tokenizer.decode(sequence.tokens[sequence.supervised].tolist()) == "hello</s>"


@pytest.mark.parametrize("content", [b"\xff", b"{", POINTER, None])
def test_templates_that_cannot_be_read(content, tmp_path):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArenaError, match=r"templates .*t\.json cannot be read: "):
        Templates.read(path)
