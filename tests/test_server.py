"""The OpenAI-compatible server, asked by the official client over a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch
from models import ForcedDrafter, chain
from tiny_trio import BASE, DART, EAGLE3, make_trio, trio_flags

from dart_core.chat_format import read_request, servers_error
from dart_core.cli import main
from dart_core.cli_api import api_key
from dart_core.drafters import NGRAM_OFF, DraftSettings
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.sampling import SamplingParams
from dart_core.server import LOCAL_NAMES, MAX_BODY, ChatServer, Device, _Server, bound_socket

openai = pytest.importorskip("openai")

ROOT = Path(__file__).resolve().parent.parent
IDS = {"dart": "Qwen3-4B-dart", "eagle3": "Qwen3-4B-eagle3", "ar": "Qwen3-4B-ar"}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def trio(tmp_path_factory) -> Path:
    return make_trio(tmp_path_factory.mktemp("trio"))


@pytest.fixture(scope="module")
def engine(trio) -> Engine:
    return Engine.load(
        target=trio / BASE,
        dart=trio / DART,
        eagle3=trio / EAGLE3,
        ngram=NGRAM_OFF,
        dtype=torch.float32,
        device="cpu",
    )


@contextmanager
def serving(chat: ChatServer, key: str | None = None) -> Iterator[str]:
    """The server on a free port, in a thread; gives its address."""
    with bound_socket("127.0.0.1", 0) as sock:
        server = _Server(chat.app(LOCAL_NAMES, key), chat.device)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.handle_exit(signal.SIGTERM, None)
            thread.join(20)
            assert not thread.is_alive()


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="nobody asks", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def served(engine) -> Iterator[SimpleNamespace]:
    said: list[str] = []
    chat = ChatServer(
        engine, GenerationSettings(max_new_tokens=16, max_length=600), log=said.append
    )
    with serving(chat) as address, client_of(address) as client:
        yield SimpleNamespace(address=address, client=client, said=said)


@pytest.fixture
def create(served):
    def create(model: str = IDS["dart"], messages=HELLO, **options):
        return served.client.chat.completions.create(model=model, messages=messages, **options)

    return create


@pytest.fixture
def expected(engine):
    """What plain decoding answers."""

    def expected(messages=HELLO, *, thinking=False, tokens=16, **sampling):
        settings = GenerationSettings(max_new_tokens=tokens, sampling=SamplingParams(**sampling))
        ids = engine.chat_ids(messages, enable_thinking=thinking)
        return engine.generate(ids, "ar", settings)

    return expected


# Answers ------------------------------------------------------------------------------------------


def test_another_target_than_the_presets_has_its_own_name(trio):
    models = {"target": trio / BASE, "dart": trio / DART, "ngram": NGRAM_OFF}
    engine = Engine.load("qwen3-8b", engines=("dart",), device="cpu", **models)
    assert list(ChatServer(engine).models) == ["Qwen3-4B-dart", "Qwen3-4B-ar"]


def test_one_model_per_engine(served):
    listed = served.client.models.list()
    assert [model.id for model in listed] == list(IDS.values())
    assert served.client.models.retrieve(IDS["eagle3"]).owned_by == "dart-arena"
    with pytest.raises(openai.NotFoundError, match="there are Qwen3-4B-dart, Qwen3-4B-eagle3"):
        served.client.models.retrieve("gpt-4")


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3, "top_p": 0.9}])
@pytest.mark.parametrize("name", IDS)
def test_every_engine_writes_what_plain_decoding_writes(create, expected, served, name, options):
    run = expected(**options)
    answer = create(IDS[name], **options)
    assert answer.object == "chat.completion" and answer.model == IDS[name]
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", run.text)
    assert choice.finish_reason == "length" and len(answer.choices) == 1
    assert answer.usage.prompt_tokens == len(run.prompt_ids)
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    assert answer.seed == options.get("seed")
    assert f"{IDS[name]}: 16 tokens in" in served.said[-1]
    streamed = list(create(IDS[name], stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == run.text
    assert streamed[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in streamed[-2:]] == [None, "length"]
    assert len({chunk.id for chunk in streamed}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in streamed)
    assert "usage" not in streamed[0].model_fields_set


def test_metrics_as_vllm_names_them(create):
    whole = create(max_tokens=30)
    *chunks, last = create(max_tokens=30, stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks)
    for answer in (whole, last):
        metrics = answer.metrics
        assert metrics["queue_time_ms"] >= 0 and metrics["time_to_first_token_ms"] > 0
        assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 29)
        told = metrics["speculative_decoding"]
        histogram = told["acceptance_histogram"]
        assert len(histogram) == told["num_spec_tokens"] + 1
        assert sum(histogram) == told["num_spec_steps"]
        accepted = sum(count * steps for count, steps in enumerate(histogram))
        assert accepted == told["num_accepted_draft_tokens"] > 0
        assert told["mean_acceptance_length"] == 1 + accepted / told["num_spec_steps"]
        assert told["draft_acceptance_rate"] == accepted / told["num_draft_tokens"]
        assert told["chosen_sizes"] is None
    plain = create(IDS["ar"], max_tokens=1)
    assert plain.metrics["speculative_decoding"] is None
    assert plain.metrics["mean_itl_ms"] is None


def test_sizes_that_were_chosen_are_told(engine):
    """So that a reader sees why no draft was made: each step with none rested."""
    settings = GenerationSettings(
        max_new_tokens=16, max_length=600, draft=DraftSettings(auto_budget=True)
    )
    with serving(ChatServer(engine, settings)) as address, client_of(address) as client:
        answer = client.chat.completions.create(model=IDS["eagle3"], messages=HELLO, temperature=0)
    told = answer.metrics["speculative_decoding"]
    sizes = told["chosen_sizes"]
    assert sizes["steps"] == told["num_spec_steps"] > 0
    assert round(sizes["mean"] * sizes["steps"]) == told["num_draft_tokens"]
    assert 0 <= sizes["rested"] <= sizes["steps"] and sizes["cost"] >= 1


def test_an_unset_seed_is_drawn_told_and_good_for_a_second_time(create):
    first = create(temperature=1, max_tokens=30)
    assert isinstance(first.seed, int)
    again = create("ar", temperature=1, max_tokens=30, seed=first.seed)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.model == IDS["ar"]  # an engine's bare name is enough
    other = create(temperature=1, max_tokens=30)
    assert other.seed != first.seed


def test_conversations(create, expected):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
        },
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "And?"},
    ]
    plain = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "And?"},
    ]
    assert create(messages=messages).choices[0].message.content == expected(plain).text
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = create(extra_body=thinking).choices[0].message.content
    assert answer == expected(thinking=True).text != expected().text


def test_lengths_and_stops(create, expected):
    run = expected(tokens=30)
    assert create(max_completion_tokens=3).usage.completion_tokens == 3
    stop = run.text[6:9]
    for stops in (stop, [stop, "never"]):
        for stream in (False, True):
            answer = create(max_tokens=30, stop=stops, stream=stream)
            if stream:
                chunks = list(answer)
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                reason = chunks[-1].choices[0].finish_reason
            else:
                text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
            assert (text, reason) == (run.text[: run.text.index(stop)], "stop")
    long = create(max_tokens=5000)  # as far as --max-length goes
    assert long.usage.total_tokens <= 600


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "temperature -1 is outside 0 to 100"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: max new tokens 0 is below 1"),
        ({"messages": []}, "messages", "messages must be a non-empty list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "message 1 has role 'tool'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image"),
        ({"messages": [{"role": "user", "content": "x" * 700}]}, None, "max length is 600"),
        ({"seed": -1}, "seed", "seed -1 is outside"),
        ({"top_p": 3}, "top_p", "top_p: top-p 3 is outside 0 to 1"),
        ({"extra_body": {"max_completion_tokens": 0}}, "max_completion_tokens", "tokens 0 is"),
        ({"frequency_penalty": 0.7}, "frequency_penalty", "frequency_penalty 0.7 is not supported"),
        ({"presence_penalty": 0.4}, "presence_penalty", "leave it out"),
        ({"logprobs": True}, "logprobs", "logprobs True is not supported"),
        ({"n": 2}, "n", "n 2 is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "need stream: true"),
        ({"extra_body": {"tempreature": 1}}, "tempreature", "unknown field 'tempreature'"),
        ({"extra_body": {"ignore_eos": 1}}, "ignore_eos", "must be true or false, got 1"),
        ({"extra_body": {"chat_template_kwargs": {"x": 1}}}, "chat_template_kwargs", "expected an"),
        ({"extra_body": {"stop": ["x"] * 65}}, "stop", "stop: 65 texts; expected 64 at most"),
        ({"extra_body": {"stop": 5}}, "stop", "stop strings come as a list of texts, got 5"),
        ({"extra_body": {"stop": {"a": 1}}}, "stop", "stop strings come as a list of texts, got"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
            "messages",
            "tool_calls of a message are not supported",
        ),
        (
            {"extra_body": {"max_tokens": "9"}},
            "max_tokens",
            "max new tokens must be a whole number",
        ),
    ],
)
def test_what_is_refused_is_named(create, options, param, says):
    for stream in (False, True):
        if stream and "stream_options" in options:
            continue
        with pytest.raises(openai.BadRequestError, match=says) as refusal:
            create(**options, stream=stream)
        assert refusal.value.type == "invalid_request_error"
        assert refusal.value.param == param


@pytest.mark.parametrize("model", ["gpt-4", "", "Qwen3-4B", 7])
def test_a_model_that_is_not_there(create, model):
    with pytest.raises(openai.NotFoundError, match="there are Qwen3-4B-dart") as refusal:
        create(model)
    assert refusal.value.code == "model_not_found"


def test_fields_without_bearing_are_passed_over():
    body = {
        "model": "dart",
        "messages": HELLO,
        "user": "someone",
        "metadata": {"a": 1},
        "n": 1,
        "frequency_penalty": 0.0,
        "presence_penalty": None,
        "logit_bias": {},
        "logprobs": False,
        "response_format": {"type": "text"},
        "temperature": None,
        "tools": [],
    }
    defaults = GenerationSettings(max_new_tokens=9, sampling=SamplingParams(0.5, 4, 0.8, 2))
    asked = read_request(body, {"x-dart": "dart"}, defaults)
    assert (asked.model, asked.engine, asked.settings) == ("x-dart", "dart", defaults)
    assert not asked.stream and not asked.stream_usage and not asked.enable_thinking
    greedy = read_request({**body, "temperature": 0}, {"x-dart": "dart"}, defaults)
    assert greedy.settings.sampling == SamplingParams()


def test_what_is_no_request(served):
    url = f"{served.address}/v1/chat/completions"
    as_json = {"content-type": "application/json"}
    with httpx.Client() as http:
        for content, status, says in (
            (b"{", 400, "the body is not JSON"),
            (b"[" * 100_000, 400, "the body is not JSON"),
            (b"\xff", 400, "the body is not JSON"),
            (b'{"max_tokens": ' + b"1" * 5000 + b"}", 400, "the body is not JSON"),
            (b'{"\\ud800": 1}', 400, r"unknown field '\ud800'"),
            (b"[]", 400, r"expected a JSON object, got []"),
            (b'{"model": "dart"}', 400, "messages are missing"),
            (b" " * (MAX_BODY + 1), 413, "larger than"),
        ):
            answer = http.post(url, content=content, headers=as_json)
            assert answer.status_code == status
            error = answer.json()["error"]
            assert says in error["message"] and error["type"] == "invalid_request_error"
        # A page of some other site can send this much unasked, and no more.
        assert http.post(url, content=b"{}").status_code == 415
        assert (
            http.post(url, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
        )
        assert http.get(served.address, headers={"host": "evil.example"}).status_code == 400
        assert http.get(url).status_code == 405
        for path in ("/", "/v2", "/v1"):
            answer = http.get(served.address + path)
            assert answer.status_code == 404 and "Not Found" in answer.json()["error"]["message"]
        for path in ("/healthz", "/health"):
            assert http.get(served.address + path).json() == {
                "status": "ready",
                "running": 0,
                "waiting": 0,
            }


# Who may ask --------------------------------------------------------------------------------------


def test_a_key_is_asked_for(engine, caplog):
    said: list[str] = []
    chat = ChatServer(engine, GenerationSettings(max_new_tokens=3), log=said.append)
    with serving(chat, key="sk-Of-this-server") as address:
        with client_of(address) as stranger:
            for ask in (
                stranger.models.list,
                lambda: stranger.models.retrieve("no such"),
                lambda: stranger.chat.completions.create(model=IDS["dart"], messages=HELLO),
            ):
                with pytest.raises(openai.AuthenticationError, match="missing or wrong") as refusal:
                    ask()
                assert refusal.value.code == "invalid_api_key"
                assert refusal.value.type == "invalid_request_error"
                assert refusal.value.response.headers["www-authenticate"] == "Bearer"
                assert "sk-Of-this-server" not in refusal.value.response.text
        with openai.OpenAI(base_url=f"{address}/v1", api_key="sk-Of-this-server") as client:
            answer = client.chat.completions.create(model=IDS["dart"], messages=HELLO)
        assert answer.usage.completion_tokens == 3
        for path in ("/healthz", "/health"):
            assert httpx.get(address + path).status_code == 200
        for path in ("/", "/nothing", "/healthz/x", "/v1/models"):
            assert httpx.get(address + path).status_code == 401
    assert "sk-Of-this-server" not in caplog.text + " ".join(said) + answer.model_dump_json()


def test_every_answer_says_that_it_is_data(served):
    with httpx.Client(base_url=served.address) as http:
        answers = [
            http.get("/v1/models"),
            http.get("/nothing"),
            http.get("/healthz", headers={"host": "evil.example"}),
            http.get("/healthz", headers={"sec-fetch-site": "cross-site"}),
            http.post("/v1/chat/completions", content=b" " * (MAX_BODY + 1)),
        ]
    assert [answer.status_code for answer in answers] == [200, 404, 400, 403, 413]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
        assert (
            answer.status_code == 200 or answer.json()["error"]["type"] == "invalid_request_error"
        )


# One at a time ------------------------------------------------------------------------------------


class Gate(ForcedDrafter):
    """Proposes nothing, a step for each permit; the n-th proposal may fail."""

    def __init__(self):
        self.permits, self.fail_at = threading.Semaphore(0), -1
        self.asked = self.proposed = 0
        super().__init__(self._tree)

    def _tree(self, _at: int, last: int):
        self.asked += 1
        assert self.permits.acquire(timeout=60)
        self.proposed += 1
        if self.proposed == self.fail_at:
            raise RuntimeError("kernel launch failure in /a/secret/place")
        return chain(last, [])


@pytest.fixture
def gated(engine):
    """A server whose engine "dart" makes a verify step for every permit, one request waiting."""
    gate = Gate()
    slow = Engine(engine.target, engine.tokenizer, {"dart": gate}, {"target": "slow"})
    chat = ChatServer(slow, GenerationSettings(max_new_tokens=4), queue=1)
    with serving(chat) as address:
        yield SimpleNamespace(address=address, gate=gate, device=chat.device)
        gate.permits.release(1000)


def health(address: str) -> dict:
    return httpx.get(f"{address}/healthz").json()


@contextmanager
def asking(address: str, **options) -> Iterator[socket.socket]:
    """A client that has sent a request and does not read."""
    body = json.dumps({"model": "slow-dart", "messages": HELLO, **options}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = address.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def test_requests_wait_in_a_bounded_queue(gated, expected):
    texts = []
    with client_of(gated.address) as client:

        def ask():
            answer = client.chat.completions.create(model="slow-dart", messages=HELLO)
            texts.append(answer.choices[0].message.content)

        threads = []
        for busy in (1, 2):
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
            until(lambda busy=busy: gated.device.busy == busy)
        assert health(gated.address) == {"status": "ready", "running": 1, "waiting": 1}
        assert gated.gate.open_runs == 1
        with pytest.raises(openai.InternalServerError, match="1 requests wait already") as full:
            client.chat.completions.create(model="slow-dart", messages=HELLO)
        assert full.value.status_code == 503 and full.value.code == "overloaded"
        assert full.value.response.headers["retry-after"] == "1"
        # What cannot be answered anyway is refused without waiting.
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nobody", messages=HELLO)
        gated.gate.permits.release(6)
        for thread in threads:
            thread.join(120)
    assert texts == [expected(tokens=4).text] * 2
    until(lambda: gated.device.busy == 0)


def test_no_other_machine_has_the_queue_for_itself(gated):
    """Of two places one; another machine has the other, and this one's own are not counted."""

    def ask(who: str):
        client = client_of(gated.address)
        headers = {"X-Forwarded-For": who}  # as a proxy of this machine tells
        return client.chat.completions.create(
            model="slow-dart", messages=HELLO, stream=True, extra_headers=headers
        )

    first = ask("203.0.113.1")
    with pytest.raises(
        openai.RateLimitError, match="1 requests from your address run or wait"
    ) as refusal:
        ask("203.0.113.1")
    assert refusal.value.code == "rate_limit_exceeded"
    assert refusal.value.response.headers["retry-after"] == "1"
    second = ask("203.0.113.2")
    with pytest.raises(openai.InternalServerError, match="wait already"):
        ask("203.0.113.3")
    second.close()
    until(lambda: gated.device.busy == 1)
    with asking(gated.address):
        until(lambda: gated.device.busy == 2)
    first.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_gives_the_device_back_within_a_step(gated, stream):
    with asking(gated.address, stream=stream, max_tokens=400):
        gated.gate.permits.release(2)
        until(lambda: gated.gate.asked == 3)
        run = next(iter(gated.device._runs))
    until(run.stop.is_set)
    gated.gate.permits.release(1)  # the step that is under way
    until(lambda: gated.gate.open_runs == 0 and gated.device.busy == 0)
    assert gated.gate.proposed == 3


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_the_queue_frees_the_place_at_once(gated, stream):
    with asking(gated.address):
        until(lambda: gated.gate.open_runs == 1)
        with asking(gated.address, stream=stream):
            until(lambda: gated.device.busy == 2)
        until(lambda: gated.device.busy == 1)
        assert gated.gate.proposed == 0 and gated.gate.open_runs == 1


def test_a_client_that_does_not_read_holds_nobody_up(gated):
    gated.gate.permits.release(1000)
    with asking(gated.address, stream=True, max_tokens=400):
        until(lambda: gated.device.busy == 1)
        until(lambda: gated.device.busy == 0)
        with client_of(gated.address) as client:
            answer = client.chat.completions.create(model="slow-dart", messages=HELLO)
            assert answer.usage.completion_tokens == 4


def test_nobody_reads_at_all(engine):
    """The run goes to its end on the device's thread, whether or not its steps are taken."""

    async def ask():
        device = Device()
        run = device.start(engine.stream([5, 9], "ar", GenerationSettings(max_new_tokens=5)))
        await asyncio.wrap_future(run.future)
        return [step async for step in run.steps()]

    assert len(asyncio.run(ask())) == 5


def test_a_failure_ends_one_answer_only(gated, expected):
    gated.gate.permits.release(1000)
    gated.gate.fail_at = 2
    with client_of(gated.address) as client:
        with pytest.raises(openai.InternalServerError, match="an internal error") as failure:
            client.chat.completions.create(model="slow-dart", messages=HELLO)
        assert "secret" not in str(failure.value)
        gated.gate.fail_at = gated.gate.proposed + 2
        stream = client.chat.completions.create(model="slow-dart", messages=HELLO, stream=True)
        assert next(stream).choices[0].delta.role == "assistant"
        with pytest.raises(openai.APIError, match=r"an internal error \(RuntimeError\)"):
            list(stream)
        answer = client.chat.completions.create(model="slow-dart", messages=HELLO)
        assert answer.choices[0].message.content == expected(tokens=4).text


def test_out_of_memory_in_words():
    error = servers_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert (error.status, error.code) == (503, "out_of_memory")
    assert str(error).startswith("the device has no memory left for this: ask for fewer tokens")


def test_no_room_now_is_not_the_clients_fault(served, create, monkeypatch, caplog):
    monkeypatch.setattr("dart_core.target.free_memory", lambda device: 100)
    with pytest.raises(openai.InternalServerError, match="has no memory left") as refusal:
        create(max_tokens=5)
    assert (refusal.value.status_code, refusal.value.code) == (503, "out_of_memory")
    assert "no memory for a run of" in caplog.text
    monkeypatch.undo()
    assert create(max_tokens=5).usage.completion_tokens == 5


def test_a_log_that_nobody_reads_costs_no_answer(engine):
    def log(line):
        raise BrokenPipeError

    with (
        serving(ChatServer(engine, GenerationSettings(max_new_tokens=4), log=log)) as address,
        client_of(address) as client,
    ):
        answer = client.chat.completions.create(model="ar", messages=HELLO)
        assert answer.usage.completion_tokens == 4


def test_a_long_prompt_holds_nobody_up(engine):
    """It is tokenised beside the loop that serves the others."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Engine):
        def chat_ids(self, *arguments, **options):
            begun.set()
            assert go_on.wait(60)
            return super().chat_ids(*arguments, **options)

    slow = Slow(engine.target, engine.tokenizer, engine.drafters, engine.facts)
    with serving(ChatServer(slow, GenerationSettings(max_new_tokens=2))) as address:
        answers = []

        def ask():
            with client_of(address) as client:
                answers.append(client.chat.completions.create(model="ar", messages=HELLO))

        asking = threading.Thread(target=ask)
        asking.start()
        assert begun.wait(60)
        assert httpx.get(f"{address}/healthz", timeout=60).json()["status"] == "ready"
        assert answers == []
        go_on.set()
        asking.join(60)
    assert answers[0].usage.completion_tokens == 2


def test_a_server_that_ends_tells_who_is_being_answered(gated):
    with client_of(gated.address) as client:
        stream = client.chat.completions.create(
            model="slow-dart", messages=HELLO, stream=True, max_tokens=400
        )
        next(stream)
        gated.device.close()
        gated.gate.permits.release(1)
        with pytest.raises(openai.APIError, match="going down"):
            list(stream)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="slow-dart", messages=HELLO)


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "a\nb"])
def test_a_key_that_no_header_carries_is_refused_unrepeated(key, capsys, monkeypatch):
    assert main(["api", "--preset=demo", f"--api-key={key}"]) == 1
    error = capsys.readouterr().err
    assert "--api-key (or DART_ARENA_API_KEY): expected letters" in error
    assert not key or key not in error


def test_the_key_comes_from_the_flag_or_the_environment(monkeypatch):
    monkeypatch.delenv("DART_ARENA_API_KEY", raising=False)
    assert (api_key(None), api_key("mine")) == (None, "mine")
    monkeypatch.setenv("DART_ARENA_API_KEY", "from-outside")
    assert (api_key(None), api_key("mine")) == ("from-outside", "mine")
    monkeypatch.setenv("DART_ARENA_API_KEY", "")
    assert api_key(None) is None


@pytest.mark.parametrize("key", [[], ["--api-key", "k"]])
def test_who_listens_is_told_what_it_means(key, monkeypatch, capsys):
    monkeypatch.setattr("dart_core.cli_run.load", _enough)
    monkeypatch.delenv("DART_ARENA_API_KEY", raising=False)
    assert main(["api", "--preset", "demo", "--server-port", "0", "--listen", *key]) == 1
    line = capsys.readouterr().err.splitlines()[0]
    if key:
        assert line.startswith("note: --listen: ")
        assert "needs the API key, which plain http carries readable" in line
    else:
        assert line.startswith("warning: --listen: whoever reaches port ")
        assert line.endswith(
            " of this machine may use the API; ask for a key with --api-key or "
            "DART_ARENA_API_KEY, or leave --listen out"
        )


def _enough(*_args, **_options):
    raise ArenaError("enough")


# The command --------------------------------------------------------------------------------------


def test_what_sizes_cost_is_measured_before_anybody_asks(monkeypatch, capsys):
    measured = []

    class Measured:
        @property
        def verify_cost(self):
            measured.append(True)

    monkeypatch.setattr("dart_core.cli_run.load", lambda *_: Measured())
    monkeypatch.setattr("dart_core.server.ChatServer", _enough)
    for budget, times in (("auto", 1), ("9", 1)):
        flags = ["--preset=demo", "--server-port=0", f"--tree-budget={budget}"]
        assert main(["api", *flags]) == 1
        assert "enough" in capsys.readouterr().err
        assert len(measured) == times


def test_the_command_serves_and_ends(trio, tmp_path):
    models = trio_flags(trio, eagle3=False)
    flags = ["--device=cpu", "--dtype=float32", "--server-port=0", "--max-new-tokens=7"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dart_core", "api", *models, *flags, "--ngram=small"],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "DART_ARENA_CACHE": str(tmp_path),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = []
        while not lines or not lines[-1].startswith("API on "):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert "models Qwen3-4B-dart, Qwen3-4B-ar" in lines[-1]
        address = lines[-1].split()[2].removesuffix("/v1,")
        with client_of(address) as client:
            answer = client.chat.completions.create(model="Qwen3-4B-dart", messages=HELLO)
        assert answer.usage.completion_tokens == 7
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(120) == 0
        assert rest.splitlines()[-1] == "stopped" and "Traceback" not in rest
    finally:
        process.kill()


def test_a_port_that_is_taken_is_told_before_loading(capsys):
    with bound_socket("127.0.0.1", 0) as sock:
        sock.listen()
        port = sock.getsockname()[1]
        assert main(["api", "--preset=demo", f"--server-port={port}"]) == 1
    error = capsys.readouterr().err
    assert f"port {port} cannot be had (Address already in use); choose another" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--server-port=70000"], "--server-port 70000: expected a number from 0"),
        (["--queue=-1"], "--queue -1: expected 0 or more"),
        (["--temperature=-1"], "temperature -1.0 is outside"),
        ([], "no models: give --preset"),
    ],
)
def test_flags_that_cannot_be(flags, says, capsys):
    assert main(["api", *(["--preset=demo"] if flags else []), *flags]) == 1
    assert says in capsys.readouterr().err


def test_the_address_is_this_machines_alone():
    with bound_socket("127.0.0.1", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ArenaError, match="cannot be had"):
        bound_socket("203.0.113.1", 0)
