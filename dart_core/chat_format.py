"""OpenAI's chat completions as data: a request's fields checked, answers and errors built.

What a field asks for is done, or refused by its name; only fields without any bearing on the answer
are passed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.memory import is_out_of_memory
from dart_core.metrics import chosen_sizes
from dart_core.sampling import SamplingParams
from dart_core.step import Step

SAMPLING = ("temperature", "top_p", "top_k", "seed")
USED = {
    "model", "messages", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options",
    "ignore_eos", "chat_template_kwargs", *SAMPLING,
}  # fmt: skip
MOST_STOPS = 64  # every step looks for each
PASSED_OVER = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls",
}  # fmt: skip
# Fields that are taken only where they ask for nothing.
NEUTRAL: dict[str, tuple] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
}


class RequestError(ArenaError):
    """What is wrong with a request, as OpenAI's error object has it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ):
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code


def servers_error(error: Exception) -> RequestError:
    """What clients are told of what is not their fault: 503 where memory lacks, which may pass,
    else 500 with the error's kind. Nothing of this machine: that is for its log.
    """
    if is_out_of_memory(error):
        return RequestError(
            "the device has no memory left for this: ask for fewer tokens, shorten the "
            "conversation, or try again later",
            status=503,
            kind="server_error",
            code="out_of_memory",
        )
    message = f"an internal error ({type(error).__name__}); the server's log has the details"
    return RequestError(message, status=500, kind="server_error")


def error_object(error: ArenaError) -> dict[str, Any]:
    """The object that clients look for. A field's name may hold half a character."""
    param = getattr(error, "param", None)
    return {
        "error": {
            "message": str(error),
            "type": getattr(error, "kind", "invalid_request_error"),
            "param": param and param.encode(errors="backslashreplace").decode(),
            "code": getattr(error, "code", None),
        }
    }


# Models -------------------------------------------------------------------------------------------


def model_ids(engine: Engine) -> dict[str, str]:
    """Id to engine, DART first: the preset's or the target's name with the engine's behind it."""
    target = Path(engine.facts.get("target", "target"))
    base = engine.facts.get("preset") or target.name or target.resolve().name
    names = sorted(engine.drafters, key=("dart", "eagle3", "ar").index)
    return {f"{base}-{name}": name for name in names}


def no_such_model(model: object, models: Iterable[str]) -> RequestError:
    return RequestError(
        f"model {model!r:.80} is not served here; there are {', '.join(models)}",
        status=404,
        param="model",
        code="model_not_found",
    )


def model_object(model: str, created: int) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": created, "owned_by": "dart-arena"}


# Requests -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that has been understood. stream_usage: a last chunk tells usage and metrics."""

    model: str
    engine: str
    messages: list[dict[str, str]]
    settings: GenerationSettings
    enable_thinking: bool
    stream: bool
    stream_usage: bool


def refuse_unsupported(said: Mapping[str, Any]) -> None:
    """Raises RequestError for a field that asks for what no engine here does: a penalty, say."""
    for name, value in said.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise RequestError(
                f"{name} {value!r:.60} is not supported here: leave it out", param=name
            )


def read_request(
    body: Any,
    models: Mapping[str, str],
    defaults: GenerationSettings,
    enable_thinking: bool = False,
) -> ChatRequest:
    """The request in a JSON body; ``defaults`` and ``enable_thinking`` stand for what it leaves
    out. Raises RequestError that names the field, ArenaError for values out of range.
    """
    if not isinstance(body, dict):
        raise RequestError(f"expected a JSON object, got {body!r:.60}")
    said = {name: value for name, value in body.items() if value is not None}
    refuse_unsupported(said)
    for name in said:
        if name not in NEUTRAL and name not in USED and name not in PASSED_OVER:
            raise RequestError(f"unknown field {name!r}: leave it out", param=name)
    model = said.get("model")
    if not isinstance(model, str) or (model not in models and model not in models.values()):
        raise no_such_model(model, models)
    if "messages" not in said:
        raise RequestError("messages are missing", param="messages")
    options = _object(said, "stream_options", {"include_usage"})
    template = _object(said, "chat_template_kwargs", {"enable_thinking"})
    stream = _flag(said, "stream")
    if options and not stream:
        raise RequestError("stream_options need stream: true", param="stream_options")
    return ChatRequest(
        model=next((each for each, name in models.items() if name == model), model),
        engine=models.get(model, model),
        messages=_messages(said["messages"]),
        settings=_settings(said, defaults),
        enable_thinking=_flag(template, "enable_thinking", enable_thinking),
        stream=stream,
        stream_usage=_flag(options, "include_usage"),
    )


def _settings(said: Mapping[str, Any], defaults: GenerationSettings) -> GenerationSettings:
    settings = with_fields(said, defaults)
    if settings.sampling.greedy:
        settings = replace(settings, sampling=SamplingParams())
    return replace(settings, ignore_eos=_flag(said, "ignore_eos", defaults.ignore_eos))


def with_fields(said: Mapping[str, Any], settings: GenerationSettings) -> GenerationSettings:
    """The settings with a request's or a batch line's own: temperature, top_p, top_k, seed,
    max_tokens, stop. Raises RequestError that names the field.
    """
    for name in SAMPLING:
        if name in said:
            with of_field(name):
                sampling = replace(settings.sampling, **{name: said[name]})
                settings = replace(settings, sampling=sampling)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in said:
            with of_field(name):
                settings = replace(settings, max_new_tokens=said[name])
    if "stop" in said:
        stop = said["stop"]
        if isinstance(stop, list) and len(stop) > MOST_STOPS:
            raise RequestError(
                f"stop: {len(stop)} texts; expected {MOST_STOPS} at most", param="stop"
            )
        with of_field("stop"):
            settings = replace(settings, stop=(stop,) if isinstance(stop, str) else stop)
    return settings


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """Within, what is wrong is that field's of the request."""
    try:
        yield
    except RequestError:
        raise
    except ArenaError as error:
        message = str(error)
        if name not in message:
            message = f"{name}: {message}"
        raise RequestError(message, param=name) from error


def _messages(messages: Any) -> Any:
    """Text parts joined, developers called systems; what else is wrong the chat template's check
    will say.
    """
    if not isinstance(messages, list):
        return messages
    return [_message(each) if isinstance(each, dict) else each for each in messages]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise RequestError(
                f"{name} of a message are not supported: give text alone", param="messages"
            )
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else part
                raise RequestError(
                    f"content parts of type {kind!r:.40} are not supported: give text",
                    param="messages",
                )
        content = "".join(part["text"] for part in content)
    return {"role": "system" if role == "developer" else role, "content": content}


def _object(said: Mapping[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    value = said.get(name, {})
    if not isinstance(value, dict) or not value.keys() <= known:
        raise RequestError(
            f"{name} {value!r:.60}: expected an object with {', '.join(known)}", param=name
        )
    return {key: given for key, given in value.items() if given is not None}


def _flag(said: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = said.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {value!r:.60}", param=name)
    return value


# Answers ------------------------------------------------------------------------------------------


class ChatAnswer:
    """The objects of one answer, which share its id."""

    def __init__(self, request: ChatRequest):
        self._request = request
        self.id = f"chatcmpl-{uuid4().hex}"
        self._created = int(time.time())

    def completion(self, text: str, reason: str, closing: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer; ``closing`` has usage and metrics."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return {**self._head("chat.completion"), "choices": [choice], **closing}

    def chunk(self, delta: Mapping[str, str], reason: str | None = None) -> dict[str, Any]:
        """A piece of a streamed answer."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self._request.stream_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage}

    def last_chunk(self, closing: Mapping[str, Any]) -> dict[str, Any]:
        """The one that has no text, but usage and metrics."""
        return {**self._head("chat.completion.chunk"), "choices": [], **closing}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "system_fingerprint": None,
        }


def closing_fields(
    engine: str,
    prompt_tokens: int,
    steps: Sequence[Step],
    metrics: Mapping[str, Any],
    queue_seconds: float,
) -> dict[str, Any]:
    """usage, metrics in vLLM's names, and the seed that sampled (None: greedy).

    metrics.speculative_decoding is None for plain decoding; its histogram is a list by the number
    of accepted drafts, and per_position_acceptance and chosen_sizes are ours (see
    ``metrics.chosen_sizes``; None unless the tree budget is auto).
    """
    new = metrics["new_tokens"]
    generation = 1000 * metrics["decode_seconds"]
    speculative = None
    if engine != "ar":
        speculative = dict(metrics["speculative_decoding"])
        counts = speculative["acceptance_histogram"]
        speculative["acceptance_histogram"] = [
            counts.get(accepted, 0) for accepted in range(speculative["num_spec_tokens"] + 1)
        ]
        speculative["chosen_sizes"] = chosen_sizes(steps)
    return {
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new,
            "total_tokens": prompt_tokens + new,
        },
        "metrics": {
            "time_to_first_token_ms": 1000 * metrics["time_to_first_token"],
            "generation_time_ms": generation,
            "queue_time_ms": 1000 * queue_seconds,
            "mean_itl_ms": generation / (new - 1) if new > 1 else None,
            "tokens_per_second": metrics["tokens_per_second"],
            "speculative_decoding": speculative,
        },
        "seed": steps[0].seed,
    }
