"""Training: masks, labels and forwards are exact; runs resume; evaluation prompts stay out."""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from dart_core import progress
from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head, load_dart_head
from dart_core.training import answers
from dart_core.training.answers import AnswerSettings, read_questions, write_answers
from dart_core.training.batches import BatchSource, choose_anchors, collate
from dart_core.training.data import ChatEncoder, Sequence, read_records, split
from dart_core.training.decoding import continue_prompts, draw
from dart_core.training.draft_vocab import choose_draft_vocabulary, count_tokens, draft_ids
from dart_core.training.evaluate import read_prompt_sets
from dart_core.training.features import (
    FeatureCache,
    Features,
    RecomputedFeatures,
    cache_settings,
    write_cache,
)
from dart_core.training.figures import HeldOut
from dart_core.training.forwards import dart_forward, eagle3_forward
from dart_core.training.initial import continue_from, initialise
from dart_core.training.initial import head_config as sizes_for
from dart_core.training.losses import soft_cross_entropy
from dart_core.training.objectives import Objective, hits
from dart_core.training.overlap import OverlapFilter
from dart_core.training.replay import replay, tau, written_passages
from dart_core.training.schedule import Progress
from dart_core.training.templates import OWN, Templates
from dart_core.training.trainer import TrainSettings, train
from dart_core.training.watch import Watch
from tests.models import head_config, output, random_head, run, tiny_model, tiny_target
from tests.text_models import byte_level

LENGTH = 24
CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last and thinking %}<think></think>{% endif %}"
    "{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n"
    "{% if thinking %}<think></think>{% endif %}{% endif %}"
)
# As Qwen3's: an empty thought opens the answer, and only the last answer still shows it.
THINKING = "{% set thinking = true %}" + CHAT


def chat(*turns: str) -> list[dict]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


def own_text(tokenizer, sequence: Sequence) -> str:
    return tokenizer.decode(sequence.tokens[sequence.supervised].tolist())


# Data ---------------------------------------------------------------------------------------------


def test_loss_mask_is_the_answers_and_their_end():
    tokenizer = byte_level(chat_template=CHAT)
    messages = chat("hi", "hello\n", "more?", "no")
    sequence = ChatEncoder(tokenizer).encode({"messages": messages})
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(sequence.tokens.tolist()) == rendered
    assert own_text(tokenizer, sequence) == "hello\n</s>no</s>"
    prompt = tokenizer.apply_chat_template(
        messages[:1], add_generation_prompt=True, return_dict=False
    )
    assert sequence.tokens[: len(prompt)].tolist() == prompt
    assert sequence.supervised.tolist().index(True) == len(prompt)


def test_cut_answer_has_no_end_and_truncation_cuts_tokens():
    tokenizer = byte_level(chat_template=CHAT)
    record = {"messages": chat("hi", "hello", "x", "never done"), "complete": False}
    sequence = ChatEncoder(tokenizer).encode(record)
    assert own_text(tokenizer, sequence) == "hello</s>never done"
    assert sequence.supervised[-1]
    cut = ChatEncoder(tokenizer, max_length=20).encode(record)
    assert cut.tokens.tolist() == sequence.tokens[:20].tolist()
    assert own_text(tokenizer, cut) == "hello</s>"[: int(cut.supervised.sum())]


def test_only_answers_the_template_shows_as_written_are_supervised():
    tokenizer = byte_level(chat_template=THINKING)
    sequence = ChatEncoder(tokenizer).encode({"messages": chat("a", "first", "b", "second")})
    # The first answer stands there without the thought its prompt had: not what was written.
    assert own_text(tokenizer, sequence) == "second</s>"


def test_rendered_text_is_supervised_like_messages():
    tokenizer = byte_level(chat_template=CHAT)
    messages = chat("hi", "hello", "x", "y")
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    encoder = ChatEncoder(tokenizer)
    one, other = encoder.encode({"text": text}), encoder.encode({"messages": messages})
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.supervised.tolist() == other.supervised.tolist()


def test_nothing_supervised_is_an_error_and_something_a_warning():
    """A marker that differs from the template's by one newline."""
    encoder = ChatEncoder(byte_level(chat_template=CHAT), max_length=64)
    wrong = {
        "text": "<s>user\nhi</s>\n<s>assistant\n".replace("assistant\n", "assistant") + "yo</s>"
    }
    cut = {"messages": chat("long question " * 9, "lost")}
    good = {"messages": chat("hi", "hello")}
    with pytest.raises(ArenaError, match=r"0 supervised tokens in 3 of 3 records.*assistant.*yo"):
        encoder.encode_all([wrong, wrong, cut])
    with pytest.warns(UserWarning, match="0 supervised tokens in 2 of 3 records"):
        assert len(encoder.encode_all([wrong, good, cut])) == 1


def test_overlap_filter_finds_a_planted_copy(tmp_path):
    prompts = tmp_path / "evaluation.jsonl"
    question = "Write a poem about the sea that never once uses the letter e, please."
    prompts.write_text(json.dumps({"turns": [question, "Now explain it."]}) + "\n")
    copy = {"messages": chat(f"Hello! {question.upper()} Thanks", "Sure")}
    echoed = {"messages": chat("Hi", "You asked: write a poem about the sea that never once uses")}
    clean = {"messages": chat("Write a poem about the sea.", "The sea ...")}
    overlap = OverlapFilter([prompts], length=8)
    kept, dropped = overlap.clean([copy, clean, echoed])
    assert (kept, dropped) == ([clean], 2)
    # A prompt of fewer words is found where it stands alone, not as part of something else.
    alone, within = (
        {"messages": chat("now explain IT", "ok")},
        {"messages": chat("Now explain it all", "ok")},
    )
    assert overlap.clean([alone, within]) == ([within], 1)


def test_split_holds_out_the_same_records_whatever_the_order_of_use():
    records = [{"text": str(i)} for i in range(20)]
    held, rest = split(records, 4, seed=3)
    assert len(held) == 4
    assert sorted(int(r["text"]) for r in held + rest) == list(range(20))
    assert split(records, 4, seed=3) == (held, rest)
    assert split(records, 4, seed=4)[0] != held


def test_draft_vocabulary_is_by_count_then_lowest_id():
    tokens = np.array([5, 5, 5, 9, 9, 2, 2, 7, 0], dtype=np.int32)
    own = np.array([1, 1, 1, 1, 1, 1, 1, 1, 0], dtype=bool)
    counts = count_tokens([Sequence(tokens, own)], 12)
    assert counts.tolist() == [0, 0, 2, 0, 0, 3, 0, 1, 0, 2, 0, 0]
    assert choose_draft_vocabulary(counts, 2).tolist() == [2, 5]  # 2 and 9 tie
    chosen = choose_draft_vocabulary(counts, 6)
    assert chosen.tolist() == [0, 1, 2, 5, 7, 9]  # unseen ones: 0, then 1
    inverse = draft_ids(chosen, 12)
    assert inverse.tolist() == [0, 1, 2, -1, -1, 3, -1, 4, -1, 5, -1, -1]
    with pytest.raises(ArenaError, match="expected 1 to 12"):
        choose_draft_vocabulary(counts, 13)


def test_head_maps_its_draft_vocabulary_exactly(target):
    chosen = torch.tensor([0, 3, 4, 100, 511])
    head = DartHead(head_config(target, draft_length=2, draft_vocab_size=5))
    head.set_draft_vocabulary(chosen)
    assert head.d2t.dtype == torch.int64
    assert head.d2t.tolist() == [0, 2, 2, 97, 507]  # offsets
    assert head.t2d.dtype == torch.bool
    assert head.t2d.nonzero().squeeze(1).tolist() == chosen.tolist()
    inverse = draft_ids(head.target_ids(torch.arange(5)), target.vocab_size)
    assert inverse[chosen].tolist() == [0, 1, 2, 3, 4]


# Forwards and loss --------------------------------------------------------------------------------


def pairs(target, seed: int = 0):
    """Random target states and embeddings of one sequence: [S, 3H], [S, H]."""
    torch.manual_seed(seed)
    size = target.hidden_size
    return torch.randn(LENGTH, 3 * size), torch.randn(LENGTH, size)


def test_dart_training_forward_equals_inference(target):
    config = head_config(target, draft_length=5, draft_vocab_size=100)
    head = random_head(DartHead, config, seed=1)
    torch.nn.init.normal_(head.midlayer.mask_rep)
    torch.nn.init.uniform_(head.norm.weight, 0.5, 1.5)  # so that the second norm shows
    hidden, embeddings = pairs(target)
    # Row 0 of three anchors, row 1 of two others, no row 2, row 3 and row 5 of one.
    anchors = [[0, 7, 22], [3, 11], [], [23], [2], [9]]
    at = [torch.tensor([row], dtype=torch.int64) for row in anchors]
    trained = dart_forward(head, hidden[None], embeddings[None], at)[0]
    place = 0
    for row, places in enumerate(anchors):
        for anchor in places:
            cache = head.new_cache(LENGTH + 8)
            inferred = head(hidden[: anchor + 1], embeddings[: anchor + 1], cache)[row]
            torch.testing.assert_close(trained[place], inferred, atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(
                head.logits(trained[place]), head.logits(inferred), atol=1e-4, rtol=1e-4
            )
            place += 1
    assert place == len(trained)


def test_eagle3_training_forward_equals_inference(target):
    config = head_config(target, draft_length=None, draft_vocab_size=100)
    head = random_head(Eagle3Head, config, seed=2)
    hidden, embeddings = pairs(target)
    anchors, steps = [0, 4, 15], 4
    trained = eagle3_forward(head, hidden[None], embeddings[None], torch.tensor([anchors]), steps)
    for index, anchor in enumerate(anchors):
        cache = head.new_cache(LENGTH + steps)
        state = head(head.fuse(hidden[: anchor + 1]), embeddings[: anchor + 1], cache)
        torch.testing.assert_close(trained[0][0, index], state[0], atol=2e-5, rtol=1e-4)
        for step in range(1, steps):  # a chain of drafts, as the tree grows along one path
            state = head.grow(
                state,
                embeddings[anchor + step : anchor + step + 1],
                cache,
                level=step,
                used=step - 1,
                tail=torch.zeros(1, step),
            )
            torch.testing.assert_close(trained[step][0, index], state[0], atol=2e-5, rtol=1e-4)


def test_dart_head_continues_an_eagle3_head():
    config = tiny_model("llama").config
    eagle3 = random_head(Eagle3Head, sizes_for(config, draft_vocab_size=64, draft_length=None), 5)
    torch.nn.init.uniform_(eagle3.norm.weight, -0.5, 1.5)
    dart = DartHead(sizes_for(config, draft_vocab_size=64, draft_length=3, key_value_heads=4))
    continue_from(dart, eagle3, seed=0)
    hidden, embeddings = torch.randn(LENGTH, 3 * 64), torch.randn(LENGTH, 64)
    row = dart.logits(dart(hidden, embeddings, dart.new_cache(LENGTH + 4)))[0]
    step = eagle3.logits(eagle3(eagle3.fuse(hidden), embeddings, eagle3.new_cache(LENGTH)))[0]
    torch.testing.assert_close(row / row.norm(), step / step.norm(), atol=1e-5, rtol=1e-4)
    assert torch.equal(dart.d2t, eagle3.d2t)


def test_fused_cross_entropy_equals_the_plain_one():
    torch.manual_seed(0)
    states = torch.randn(700, 12, requires_grad=True)
    weight = torch.randn(30, 12, requires_grad=True)
    ids, mass = torch.randint(0, 30, (700, 4)), torch.rand(700, 4)
    total, parts = soft_cross_entropy(states, weight, ids, mass)
    (total * 0.25).backward()
    got = states.grad.clone(), weight.grad.clone()
    states.grad = weight.grad = None
    plain = -(mass * (states @ weight.T).log_softmax(-1).gather(1, ids)).sum(-1)
    (plain.sum() * 0.25).backward()
    torch.testing.assert_close(parts, plain.detach())
    torch.testing.assert_close(total, plain.sum())
    torch.testing.assert_close(got[0], states.grad)
    torch.testing.assert_close(got[1], weight.grad, rtol=1e-4, atol=1e-4)


# Features, batches, training ----------------------------------------------------------------------


def random_sequences(count: int, vocab_size: int, seed: int = 0) -> list[Sequence]:
    """Two answers of a repetitive language each, between unsupervised tokens."""
    rng = np.random.default_rng(seed)
    sequences = []
    for _ in range(count):
        length = int(rng.integers(20, 30))
        tokens = (rng.integers(0, 5) + np.arange(length) * 3) % vocab_size
        supervised = np.zeros(length, dtype=bool)
        supervised[4:11] = supervised[14:] = True
        sequences.append(Sequence(tokens.astype(np.int32), supervised))
    return sequences


@pytest.fixture(scope="module")
def cache(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    model = tiny_model("llama")
    sequences = random_sequences(70, 40)
    settings = cache_settings(model, sequences, target="tiny", top_k=8)
    write_cache(folder, model, sequences, settings, batch_tokens=100, log=lambda _: None)
    return FeatureCache(folder)


def test_features_are_the_targets_states_and_probabilities(cache):
    model, sequences = tiny_model("llama"), random_sequences(70, 40)
    assert len(cache) == 70
    for index in (0, 63, 64, 69):
        item, sequence = cache[index], sequences[index]
        tokens = torch.from_numpy(sequence.tokens).long()
        assert item.tokens.tolist() == tokens.tolist()
        with torch.no_grad():
            output = model(tokens[None], output_hidden_states=True)
        states = torch.cat([output.hidden_states[i][0] for i in (2, 3, 4)], dim=-1)
        torch.testing.assert_close(item.hidden, states, atol=1e-3, rtol=1e-3)
        best = output.logits[0].log_softmax(-1).topk(8)
        wanted = torch.from_numpy(sequence.supervised[1:]).nonzero().squeeze(1)
        torch.testing.assert_close(
            item.top_logprobs[wanted], best.values[wanted], atol=2e-2, rtol=1e-3
        )
        assert (item.top_ids[wanted, 0] == best.indices[wanted, 0]).all()


def test_feature_cache_resumes_and_refuses_other_data(cache, tmp_path):
    model, sequences = tiny_model("llama"), random_sequences(70, 40)
    lines: list[str] = []
    other, same = (cache_settings(model, sequences, target="tiny", top_k=k) for k in (4, 8))
    with pytest.raises(ArenaError, match="holds features of top_k 8, not 4: choose"):
        write_cache(cache.folder, model, sequences, other, log=lines.append)
    write_cache(cache.folder, model, sequences, same, log=lines.append)
    assert len(lines) == 1  # how much it is; every shard was there


def test_features_beyond_the_size_limit_are_computed_when_they_are_read(cache, tmp_path):
    """The size is said before; of two shards one fits; a missing one is a gap, not a shift."""
    model, sequences = tiny_model("llama"), random_sequences(70, 40)
    per_token = 3 * 64 * 4 + 8 * 6 + 5  # three states in fp32, eight ids with probabilities
    first, second = (sum(len(s.tokens) for s in part) for part in (sequences[:64], sequences[64:]))
    lines: list[str] = []
    limit = (first + second) * per_token - 1
    settings = cache_settings(model, sequences, target="tiny", top_k=8)
    write_cache(tmp_path, model, sequences, settings, limit_bytes=limit, log=lines.append)
    assert f"70 sequences, {first + second:,} tokens" in lines[0]
    assert f"keeps {first / (first + second):.0%} of them" in lines[1]
    partly = FeatureCache(tmp_path)
    assert len(partly) == 64
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < limit * 1.05
    everything = RecomputedFeatures(partly, model, sequences)
    assert len(everything) == 70
    for index, item in enumerate(everything.several(range(60, 70)), 60):
        for name in ("tokens", "supervised", "top_ids", "top_logprobs", "hidden"):
            ours, kept = getattr(item, name), getattr(cache[index], name)
            torch.testing.assert_close(ours, kept, atol=1e-3, rtol=1e-3)
    (tmp_path / "00000.safetensors").rename(tmp_path / "00001.safetensors")
    gap = FeatureCache(tmp_path)
    assert len(gap) == 0
    assert 64 in gap and 0 not in gap
    assert gap[64].tokens.tolist() == sequences[0].tokens.tolist()


def test_other_files_in_a_cache_are_left_alone_and_damaged_ones_named(cache, tmp_path):
    shutil.copytree(cache.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").write_bytes(b"somebody's")
    assert len(FeatureCache(tmp_path)) == len(cache)
    (tmp_path / "00001.safetensors").write_bytes(b"damaged")
    with pytest.raises(ArenaError, match=r"00001.safetensors is damaged \(.*remove it"):
        FeatureCache(tmp_path)


def test_several_processes_fill_one_cache(cache, tmp_path):
    model, sequences = tiny_model("llama"), random_sequences(70, 40)
    settings = cache_settings(model, sequences, target="tiny", top_k=8)
    for worker in (1, 0):
        write_cache(
            tmp_path,
            model,
            sequences,
            settings,
            batch_tokens=100,
            worker=worker,
            workers=2,
            log=str,
        )
    both = FeatureCache(tmp_path)
    assert len(both) == 70
    assert torch.equal(both[69].hidden, cache[69].hidden)


def test_labels_stop_at_the_end_of_an_answer(cache):
    inverse = torch.arange(512)
    batch = collate([cache[0], cache[1]], inverse)
    item = cache[0]
    anchors = torch.tensor([[2, 8, 9, 12]]).expand(2, -1)
    for row in range(4):
        ids, mass, favourite, valid = batch.labels(anchors, row)
        for place, anchor in enumerate(anchors[0].tolist()):
            about = anchor + 2 + row
            right = about < len(item.tokens) and bool(item.supervised[anchor + 2 : about + 1].all())
            assert bool(valid[0, place]) == right
            assert bool(mass[0, place].sum() > 0) == right
            if right:
                assert ids[0, place].tolist() == item.top_ids[about - 1].tolist()
                assert int(favourite[0, place]) == int(item.top_ids[about - 1, 0])
    assert not batch.anchors()[0, [0, 1, 9, 10, 11]].any()
    chosen = choose_anchors(batch, 50, [torch.Generator().manual_seed(i) for i in range(2)])
    assert batch.anchors().gather(1, chosen).all()
    # A sequence's anchors are its own, whatever it is padded to.
    alone = choose_anchors(collate([item], inverse), 50, [torch.Generator().manual_seed(0)])
    assert torch.equal(alone[0], chosen[0])


def test_tokens_outside_the_draft_vocabulary_have_no_mass(cache):
    inverse = draft_ids(torch.arange(0, 512, 2), 512)
    batch = collate([cache[0]], inverse)
    item = cache[0]
    even = item.top_ids % 2 == 0
    wanted = torch.cat([item.supervised[1:], torch.tensor([False])])
    expected = (item.top_logprobs.exp() * even)[wanted]
    torch.testing.assert_close(batch.top_mass[0][wanted], expected)
    assert (batch.top_ids[0][wanted][even[wanted]] * 2 == item.top_ids[wanted][even[wanted]]).all()


def trainable(kind: str, cache, holdout: int = 4):
    """(head, embedding, batches, objective) of a tiny training."""
    model = tiny_model("llama")
    vocabulary = choose_draft_vocabulary(np.bincount(np.arange(40), minlength=512), 64)
    dart = kind == "dart"
    config = sizes_for(model.config, draft_vocab_size=64, draft_length=3 if dart else None)
    head = (DartHead if dart else Eagle3Head)(config)
    initialise(head, model, vocabulary, seed=0)
    source = BatchSource(cache, draft_ids(vocabulary, 512), holdout=holdout, sequences=3, seed=0)
    return head, model.get_input_embeddings().requires_grad_(False), source, Objective(4, 0.6, 0.7)


SETTINGS = TrainSettings(
    steps=30,
    anchors=8,
    warmup_steps=3,
    learning_rate=3e-3,
    log_every=1,
    save_every=4,
    evaluate_every=9,
)


def losses(folder) -> list[float]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("kind", ["dart", "eagle3"])
def test_training_lowers_the_loss_and_resumes_to_the_same_losses(kind, cache, tmp_path, target):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    head, embed, source, objective = trainable(kind, cache)
    train(
        head, embed, source, objective, SETTINGS, whole,
        accelerator=Accelerator(cpu=True), log=lambda _: None,
    )  # fmt: skip
    assert len(losses(whole)) == 30
    assert np.mean(losses(whole)[-5:]) < 0.7 * np.mean(losses(whole)[:3])

    def interrupted(line: str) -> None:
        if line.startswith("step 10:"):
            raise KeyboardInterrupt

    again, embed, source, objective = trainable(kind, cache)
    with pytest.raises(KeyboardInterrupt):
        train(
            again, embed, source, objective, SETTINGS, parts,
            accelerator=Accelerator(cpu=True), log=interrupted,
        )  # fmt: skip
    again, embed, source, objective = trainable(kind, cache)
    train(
        again, embed, source, objective, SETTINGS, parts,
        accelerator=Accelerator(cpu=True), log=lambda _: None,
    )  # fmt: skip
    assert losses(parts) == losses(whole)  # step 9 was logged, lost, and done again
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    if kind == "dart":
        loaded = load_dart_head(
            whole, dtype=torch.float32, device="cpu", target_config=tiny_model("llama").config
        )
        assert loaded.config.draft_length == 3
        torch.testing.assert_close(loaded.fc.weight, head.fc.weight.bfloat16().float())


def test_a_signal_ends_a_run_behind_its_step_and_it_goes_on_from_there(cache, tmp_path):
    def started(name: str, log=lambda _: None) -> list[float]:
        head, embed, source, objective = trainable("dart", cache)
        train(
            head, embed, source, objective, SETTINGS, tmp_path / name,
            accelerator=Accelerator(cpu=True), log=log,
        )  # fmt: skip
        return losses(tmp_path / name)

    def terminated(line: str) -> None:
        if line.startswith("step 10:"):
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        started("parts", terminated)
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(losses(tmp_path / "parts")) == 11  # it hears the signal in the step behind
    assert load_dart_head(
        tmp_path / "parts",
        dtype=torch.float32,
        device="cpu",
        target_config=tiny_model("llama").config,
    )
    lines: list[str] = []
    assert started("parts", lines.append) == started("whole")
    assert lines[0].endswith("at step 11")


@pytest.fixture(scope="module")
def begun(cache, tmp_path_factory):
    """A head's folder, two steps trained."""
    folder = tmp_path_factory.mktemp("begun")
    train(
        *trainable("dart", cache), replace(SETTINGS, steps=2), folder,
        accelerator=Accelerator(cpu=True), learnt_from={"target fingerprint": "a"}, log=str,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("change", ["decay", "vocabulary", "held out", "target", "text"])
def test_a_run_does_not_go_on_with_other_settings_or_data(change, cache, begun):
    holdout = 5 if change == "held out" else 4
    head, embed, source, objective = trainable("dart", cache, holdout)
    of = {"target fingerprint": "a"}
    says = "begun with --holdout 4, not 5"
    if change == "decay":
        objective, says = Objective(4, 0.9, 0.7), "begun with --loss-decay 0.6, not 0.9"
    elif change == "vocabulary":
        source.to_draft, says = source.to_draft.roll(1), "begun with another draft vocabulary"
    elif change == "target":
        of, says = {"target fingerprint": "b"}, "begun with target fingerprint a, not b: give"
    elif change == "text":  # as older versions began it
        of, says = {**of, "text fingerprint": "t"}, r"text fingerprint \(an older version did not"
    with pytest.raises(ArenaError, match=says):
        train(
            head, embed, source, objective, replace(SETTINGS, steps=4), begun,
            accelerator=Accelerator(cpu=True), learnt_from=of, log=lambda _: None,
        )  # fmt: skip


def test_hits_of_a_draft_vocabulary_of_one_token(cache):
    """There are fewer guesses than ranks: hit@1, @5 and @10 are the same."""
    model, only = tiny_model("llama"), int(cache[0].top_ids[5, 0])
    config = sizes_for(model.config, draft_vocab_size=1, draft_length=2)
    head = random_head(DartHead, config, seed=1)
    batch = collate([cache[0]], draft_ids(torch.tensor([only]), 512))
    with torch.no_grad():
        found, cases = hits(head, batch, model.get_input_embeddings()(batch.tokens[:, 1:]), 2)
    assert 0 < found[0, 0] < cases[0]
    assert torch.equal(found, found[:, :1].expand(-1, 3))


def test_training_needs_an_end():
    with pytest.raises(ArenaError, match="steps, tokens or minutes"):
        TrainSettings()
    for given in ({"minutes": 0.0}, {"tokens": 0}, {"steps": 0}, {"minutes": math.inf}):
        with pytest.raises(ArenaError, match=r"--\w+ (0|0\.0|inf): expected a number above 0"):
            TrainSettings(**given)


def test_what_no_text_is_long_enough_for_has_no_figure(cache, tmp_path):
    """Answers of one token have no verify step; of three tokens none has a fourth position."""
    head, embed, source, _ = trainable("dart", cache)
    items = [replace_supervised(item, slice(4, 7)) for item in source.held_out()]
    held_out = HeldOut(items, source.to_draft, embed, 4, max_new_tokens=1)
    figures = held_out.measure(head)
    assert figures["tau"] == {"16": None, "60": None}
    assert None not in figures["hit@1"][:3]
    assert figures["hit@10"][3] is None
    lines: list[str] = []
    watch = Watch(head, Progress(), SETTINGS, tmp_path, held_out, lines.append)
    watch.end()
    assert lines[0].endswith("-, τ - at 16, - at 60")
    assert "hit@10" in (tmp_path / "curves.html").read_text()
    assert "τ" not in (tmp_path / "curves.html").read_text()


def replace_supervised(item: Features, answer: slice) -> Features:
    """Its only answer is there."""
    supervised = torch.zeros_like(item.supervised)
    supervised[answer] = True
    return replace(item, supervised=supervised)


def test_sets_of_prompts_have_names_of_their_own(tmp_path):
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "x/a.jsonl", "held-out.jsonl")]
    (tmp_path / "x").mkdir()
    for number, path in enumerate(paths):
        path.write_text(json.dumps({"prompt": str(number)}) + "\n" + '{"prompt": "more"}\n')
    sets = read_prompt_sets(paths, 1)
    assert {name: [p.turns for p in prompts] for name, prompts in sets.items()} == {
        "b": [("1",)], **{str(paths[number]): [(str(number),)] for number in (0, 2, 3)},
    }  # fmt: skip


# Answers and replay -------------------------------------------------------------------------------


def test_each_row_is_sampled_at_its_own_temperature():
    scores = torch.randn(1, 20).expand(2, -1).repeat_interleave(4000, 0)
    heats = torch.tensor([0.0, 0.5]).repeat_interleave(4000)
    drawn = draw(scores, heats, torch.Generator().manual_seed(0))
    assert (drawn[:4000] == scores[0].argmax()).all()
    equal = torch.zeros(1, 5000)
    equal[0, 7::9] = 1.0
    assert draw(equal, torch.zeros(1), torch.Generator().manual_seed(0)).tolist() == [7]
    shares = torch.bincount(drawn[4000:], minlength=20) / 4000
    torch.testing.assert_close(shares, (scores[0] / 0.5).softmax(-1), atol=0.03, rtol=0)


def test_batched_decoding_is_that_of_each_prompt_alone():
    """Rows of unequal length leave the batch one by one, at an end token or at their limit."""
    model = tiny_model("llama").eval()
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [3], [5, 8]]
    limits, never = [12, 5, 20, 0], frozenset({511})
    counts: list[int] = []
    alone = [continue_prompts(model, [prompt], [0.0], [20], never, seed=0)[0] for prompt in prompts]
    assert not any(511 in own for own in alone)
    ends = {alone[0][3], alone[1][2]}
    written = continue_prompts(
        model, prompts, [0.0] * 4, limits, ends, seed=0, each_step=lambda n: not counts.append(n)
    )
    for own, whole, limit in zip(written, alone, limits, strict=True):
        stop = next((i + 1 for i, token in enumerate(whole[:limit]) if token in ends), limit)
        assert own == whole[:stop]
    assert {own[-1] for own in written if own} >= ends
    assert sum(counts) == sum(map(len, written))
    plain = model.generate(torch.tensor([prompts[1]]), max_new_tokens=20, do_sample=False)
    assert plain[0, 6:].tolist() == alone[1]
    stopped = continue_prompts(
        model, prompts, [0.0] * 4, [9] * 4, never, seed=0, each_step=lambda _: False
    )
    assert [len(own) for own in stopped] == [1] * 4


def test_answers_resume_to_the_same_file(tmp_path):
    tokenizer = byte_level(chat_template=CHAT)
    model = tiny_model("llama", vocab_size=len(tokenizer)).eval()
    settings = AnswerSettings(conversations=9, turns=2, batch=4, max_new_tokens=12, max_length=160)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(12)))
    arguments = (model, tokenizer)

    def written(name: str, *counts: int) -> list[dict]:
        for count in counts:
            write_answers(
                *arguments, tmp_path / name, replace(settings, conversations=count),
                questions=read_questions([prompts]), log=lambda _: None,
            )  # fmt: skip
        return list(read_records([tmp_path / name]))

    whole = written("whole.jsonl", 9)
    assert len(whole) == 9
    for record in whole:
        roles = [message["role"] for message in record["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert [r["messages"][0]["content"] for r in whole] == [f"question {i}" for i in range(9)]
    assert {r["temperature"] for r in whole} == {0.0, 0.7}
    assert written("parts.jsonl", 4, 9) == whole
    parts = []
    for part in ((0, 2), (1, 2)):  # batches 0 and 2, of four, four and one; then batch 1
        output = tmp_path / f"part{part[0]}.jsonl"
        options = replace(settings, conversations=99, part=part)
        write_answers(
            *arguments, output, options, questions=read_questions([prompts]), log=lambda _: None
        )
        parts.append(list(read_records([output])))
    assert parts[0][:4] + parts[1] + parts[0][4:5] == whole
    with (tmp_path / "parts.jsonl").open("a") as file:  # a kill in the middle of a write
        file.write('{"messages": [{"ro')
    assert written("parts.jsonl", 9) == whole
    with pytest.raises(ArenaError, match="begun with --batch 4, not 8"):
        write_answers(
            *arguments,
            tmp_path / "parts.jsonl",
            replace(settings, batch=8),
            questions=read_questions([prompts]),
        )


def test_answers_end_in_time_and_time_is_that_of_all_calls(tmp_path, monkeypatch):
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds) * 0.1)  # as long as it is asked often
    monkeypatch.setattr(answers, "time", clock)
    monkeypatch.setattr(progress, "time", clock)
    tokenizer = byte_level(chat_template=CHAT)
    model = tiny_model("llama", vocab_size=len(tokenizer)).eval()
    settings = AnswerSettings(10**6, batch=2, max_new_tokens=400, minutes=1e-9)
    assert write_answers(model, tokenizer, tmp_path / "none.jsonl", settings, log=str) == 0
    # The first batch gets a little more where time is too short for any.
    asked = {"templates": Templates({"templates": ["say {word}"], "word": ["yes", "no"]})}
    hurried = replace(settings, minutes=0.01, template_share=1)
    few = tmp_path / "few.jsonl"
    assert write_answers(model, tokenizer, few, hurried, **asked, log=str) == 2
    assert all(record["messages"][1]["content"] for record in read_records([few]))
    settings = replace(settings, minutes=0.5, template_share=1)
    lines: list[str] = []
    output = tmp_path / "x.jsonl"
    count = write_answers(model, tokenizer, output, settings, **asked, log=lines.append)
    records = list(read_records([output]))
    assert len(records) == count > 0
    assert {r["messages"][0]["content"] for r in records} <= {"say yes", "say no"}
    assert "tokens/s" in lines[-1]
    assert write_answers(model, tokenizer, output, settings, **asked, log=str) == count


def test_templates_fill_their_slots_and_are_checked(tmp_path):
    generator = random.Random(0)
    for _ in range(200):
        assert not set("{}") & set(Templates.read(OWN).draw(generator).replace("{}", ""))
    with pytest.raises(ArenaError, match=r"no list 'b', which 'a \{b\}' needs"):
        Templates({"templates": ["a {b}"]})
    with pytest.raises(ArenaError, match='has no list "templates"'):
        Templates({"a": ["b"]})
    with pytest.raises(ArenaError, match=r"expected '\}'"):
        Templates({"templates": ["a {b"]})
    (tmp_path / "x.json").write_text('{"templates": [1]}')
    with pytest.raises(ArenaError, match=r"x\.json: expected an object of lists of texts"):
        Templates.read(tmp_path / "x.json")


@pytest.mark.parametrize("kind", [DartHead, Eagle3Head])
def test_replayed_acceptance_is_that_of_decoding(kind, target):
    head = random_head(
        kind,
        head_config(target, draft_length=3 if kind is DartHead else None, draft_vocab_size=512),
        seed=4,
    )
    drafter = (
        DartDrafter(head, {}, target.embed)
        if kind is DartHead
        else Eagle3Drafter(head, target.embed)
    )
    settings = DraftSettings(tree_budget=100, ngram_weight=0.0)
    prompt = [3, 1, 4, 1, 5, 9]
    steps = run(target, drafter, prompt, max_new_tokens=40, settings=settings)
    plain = tiny_model("llama").eval()
    plain.generation_config.repetition_penalty = 1.5  # which no engine applies
    for eos in ({511}, set()):
        passages = list(written_passages(plain, [prompt], (2, 3, 4), 40, eos))
        assert passages[0].tokens[len(prompt) :].tolist() == output(steps)
    replayed = replay(drafter, passages[0], settings)
    verify = [step for step in steps if step.kind == "verify"]
    assert replayed.new_tokens == sum(len(step.tokens) for step in verify)
    assert list(replayed.accepted) == [len(step.path) - 1 for step in verify]
    assert tau([replayed]) == pytest.approx(39 / len(verify))
