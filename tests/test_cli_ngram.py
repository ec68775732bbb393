"""``python -m dart_core ngram``: what it reads, writes, prints and refuses."""

from __future__ import annotations

import gzip
import json

import pytest
from golden_dart import DART, tries
from text_models import byte_level

from dart_core import ngram_twin
from dart_core.cli import main
from dart_core.ngram import NgramModel, tokenizer_fingerprint

TEXTS = ["a question", "its answer", "more", "to come"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level(("Ġha",)).save_pretrained(folder)
    return folder


def expected_counts(tokenizer, texts, end):
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    streams = [loaded.encode(text, add_special_tokens=False) + end(loaded) for text in texts]
    return ngram_twin.build(streams, 3, len(loaded)).counts


def run(*arguments) -> int:
    return main(["ngram", *map(str, arguments)])


@pytest.mark.parametrize(
    "records",
    [
        [{"text": text} for text in TEXTS],
        TEXTS,
        [{"prompt": TEXTS[0], "response": TEXTS[1]}, {"turns": TEXTS[2:]}],
        [{"messages": [{"role": "user", "content": text} for text in TEXTS], "complete": True}],
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_build_from_records(records, zipped, tokenizer, tmp_path):
    """Every text of every known field is counted once, the end-of-sequence token behind it."""
    path = tmp_path / ("data.jsonl" + ".gz" * zipped)
    content = "\n\n".join(json.dumps(record) for record in records).encode()
    path.write_bytes(gzip.compress(content) if zipped else content)
    output = tmp_path / "x.ngram"
    assert run("build", path, "--tokenizer", tokenizer, "--output", output) == 0
    counts = expected_counts(tokenizer, TEXTS, lambda loaded: [loaded.eos_token_id])
    assert ngram_twin.read(output).counts == counts


def test_build_from_several_plain_texts_without_end(tokenizer, tmp_path, capsys):
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(f"{text}\n\n{text}")
    files = sorted(tmp_path.glob("*.txt"))
    output = tmp_path / "x.ngram"
    arguments = ("--tokenizer", tokenizer, "--output", output, "--eos-token-id", -1)
    assert run("build", *files, *arguments) == 0
    counts = expected_counts(tokenizer, [f"{t}\n\n{t}" for t in TEXTS], lambda _: [])
    assert ngram_twin.read(output).counts == counts
    assert "order 3" in capsys.readouterr().err
    from transformers import AutoTokenizer

    fingerprint = tokenizer_fingerprint(AutoTokenizer.from_pretrained(tokenizer))
    assert NgramModel.open(output).fingerprint == fingerprint


def test_build_from_token_ids_takes_them_as_they_are(tmp_path, capsys):
    path = tmp_path / "ids.jsonl"
    path.write_text('[1, 2, 3]\n{"input_ids": [1, 2, 4]}\n{"tokens": []}\n')
    arguments = ("build", path, "--token-ids", "--vocab-size", 8, "--order", 2)
    assert run(*arguments, "--output", tmp_path / "x.ngram") == 0
    nodes = ngram_twin.read(tmp_path / "x.ngram")
    assert nodes.counts == ngram_twin.build([[1, 2, 3], [1, 2, 4]], 2, 8).counts
    capsys.readouterr()
    assert run("query", tmp_path / "x.ngram", "--context", "1,2", "--tokens", "3,5") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["3", "0.500000"]
    assert lines[1].split()[:2] == ["5", "0.000000"]


def test_import_merge_reduce_inspect(tmp_path, capsys):
    a, whole, reduced = (tmp_path / name for name in ("a.ngram", "whole.ngram", "reduced.ngram"))
    source = DART / "trie" / "e_addall_order3.trie"
    assert run("import", source, "--output", a, "--vocab-size", 600) == 0
    assert run("merge", a, "--output", whole) == 0
    assert run("reduce", whole, "--threshold", 4, "--output", reduced) == 0
    capsys.readouterr()
    assert run("inspect", reduced, "--verify", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    expected = tries()["g_reduce4_order3"]
    assert facts["canonical_sha256"] == expected["canonical_sha256"]
    assert (facts["vocab_size"], facts["root_total"]) == (600, expected["root_freq"])
    assert run("inspect", reduced) == 0
    assert f"{expected['root_freq']} (minus the counts that reduce" in capsys.readouterr().out
    assert run("inspect", a) == 0
    told = capsys.readouterr().out
    assert "order" in told and "(minus" not in told


@pytest.mark.parametrize("action", [("inspect",), ("query", "--context=1", "--tokens=2")])
def test_a_file_that_is_not_there(action, tmp_path, capsys):
    assert run(*action, tmp_path / "no.ngram") == 1
    says = "No such file or directory"
    assert capsys.readouterr().err == f"error: {tmp_path / 'no.ngram'}: {says}\n"
    assert run("import", tmp_path / "no.trie", "--output", tmp_path / "x.ngram") == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'no.trie'}: {says}\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not a JSON value"),
        ('{"other": "x"}', "none of messages, turns, prompt, response, text; found: other"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "messages holds something"),
        ("7", "expected an object or a text"),
    ],
)
def test_a_bad_line_is_named(line, reason, tokenizer, tmp_path, capsys):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "good"}\n' + line)
    assert run("build", path, "--tokenizer", tokenizer, "--output", tmp_path / "x.ngram") == 1
    error = capsys.readouterr().err
    assert f"{path}:2: " in error
    assert reason in error
    assert not (tmp_path / "x.ngram").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("--tokenizer", "x", "--order", "9"), 1, "--order 9 is outside 2 to 8"),
        (("--token-ids",), 1, "needs --vocab-size"),
        (("--token-ids", "--vocab-size", "3"), 1, "outside the vocabulary of 3"),
        (("--token-ids", "--vocab-size", "0"), 1, "--vocab-size 0: expected 1 or more"),
        (("--token-ids", "--vocab-size", "9", "--memory-mib", "-3"), 1, "--memory-mib -3"),
        (("--token-ids", "--vocab-size", "nine"), 2, "invalid int value: 'nine'"),
        (("--token-ids", "--tokenizer", "x"), 2, "not allowed with"),
        ((), 2, "required"),
    ],
)
def test_wrong_flags(arguments, code, reason, tmp_path, capsys):
    (tmp_path / "ids.jsonl").write_text("[1, 2, 3]")
    output = ("--output", tmp_path / "x.ngram")
    assert run("build", tmp_path / "ids.jsonl", *output, *arguments) == code
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("action", ["build", "import", "merge", "reduce"])
def test_an_output_that_cannot_be_written_is_refused_first(action, tmp_path, capsys):
    """Before the inputs, which are not there either, are looked at."""
    flags = {"build": ["--token-ids", "--vocab-size", 9], "reduce": ["--threshold", 2]}
    output = ("--output", tmp_path / "none" / "x.ngram")
    assert run(action, tmp_path / "nothing", *flags.get(action, []), *output) == 1
    assert f"--output {output[1]}: no folder {output[1].parent}" in capsys.readouterr().err


def test_more_workers_than_a_machine_runs(tokenizer, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("text")
    flags = ["--tokenizer", tokenizer, "--output", tmp_path / "x.ngram", "--workers", 99999]
    assert run("build", tmp_path / "text.txt", *flags) == 1
    assert "--workers 99999: expected 1 to " in capsys.readouterr().err


def test_an_end_token_outside_the_vocabulary(tokenizer, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("text")
    flags = ["--tokenizer", tokenizer, "--output", tmp_path / "x.ngram", "--eos-token-id", 9999]
    assert run("build", tmp_path / "text.txt", *flags) == 1
    assert "--eos-token-id 9999 is outside the vocabulary of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/no/such/tokenizer", "tokenizer '/no/such/tokenizer': no such folder, and not a hub id"),
        ("{}", "no tokenizer.json or *.model or vocab.json"),
        ("{}/text.txt", "is a file; expected a folder"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_told_in_one_line(name, reason, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("text")
    output = tmp_path / "x.ngram"
    name = name.format(tmp_path)
    assert run("build", tmp_path / "text.txt", "--tokenizer", name, "--output", output) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize("name", ["bytes.jsonl", "half.jsonl.gz"])
def test_inputs_that_are_no_whole_text_are_named(tmp_path, capsys, name):
    path, output = tmp_path / name, tmp_path / "x.ngram"
    path.write_bytes(b"\x88\xff" if name == "bytes.jsonl" else gzip.compress(b"[1, 2]" * 99)[:-9])
    flags = ["--token-ids", "--vocab-size", "9", "--output", str(output)]
    assert main(["ngram", "build", str(path), *flags]) == 1
    assert f"{path} is not whole UTF-8 text" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    "action",
    [("import", "a.trie"), ("merge", "a.ngram", "a.ngram"), ("reduce", "--threshold=9", "a.ngram")],
    ids=lambda action: action[0],
)
def test_an_output_that_is_an_input_is_refused(action, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / action[-1]
    trie = tmp_path / "a.trie"
    trie.write_bytes((DART / "trie" / "a_order3.trie").read_bytes())
    assert run("import", trie, "--output", tmp_path / "a.ngram") == 0
    before = source.read_bytes()
    (tmp_path / "linked").symlink_to(source)
    for output in (source, "linked"):
        assert run(*action, "--output", output) == 1
        assert "is an input itself" in capsys.readouterr().err
        assert source.read_bytes() == before
