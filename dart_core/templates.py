"""Chat templates by name, as the published interface has them: a conversation as prompt text.

The model's own template (``tokenizer.apply_chat_template``) says the same and knows more; these
need no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dart_core.errors import ArenaError
from dart_core.text import check_messages


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What stands around the messages of a conversation.

    Each message is its role's header, the content, then ``end_of_turn_token`` with its line break.
    system_header: None takes ``user_header`` with "system" for "user". empty_thought: for models
    that think first: what their answer begins with where it is not to.
    """

    assistant_header: str
    user_header: str
    system_prompt: str | None
    end_of_turn_token: str
    system_header: str | None = None
    empty_thought: str = ""

    def format(
        self, messages: Sequence[Mapping[str, str]], *, enable_thinking: bool = False
    ) -> str:
        """The conversation as prompt text, ready for the answer. Nothing is added to it: a system
        prompt is one of its messages. Thoughts of earlier answers are left out, as Qwen3 does.

        Raises ArenaError for a malformed conversation.
        """
        headers = {
            "system": self.system_header or self.user_header.replace("user", "system"),
            "user": self.user_header,
            "assistant": self.assistant_header,
        }
        text = ""
        for message in check_messages(messages):
            role, content = message["role"], message["content"]
            if role == "assistant" and self.empty_thought:
                content = content.rpartition("</think>")[2].lstrip("\n")
            text += headers[role] + content + self.end_of_turn_token
        return text + self.assistant_header + ("" if enable_thinking else self.empty_thought)


class TemplateRegistry:
    """Templates by name; a name that is not there is an ArenaError that lists those that are."""

    def __init__(self) -> None:
        self._templates: dict[str, ChatTemplate] = {}

    def register(self, name: str, template: ChatTemplate, override: bool = False) -> None:
        """Add a template; a known name is an error unless ``override``."""
        if name in self._templates and not override:
            raise ArenaError(
                f"template {name!r} is there already: take another name, or override=True"
            )
        self._templates[name] = template

    def get(self, name: str) -> ChatTemplate:
        """The template called ``name``: "qwen" for every Qwen3."""
        try:
            return self._templates[name]
        except (KeyError, TypeError):
            known = ", ".join(self._templates)
            raise ArenaError(
                f"unknown template {name!r}; known templates: {known} (all Qwen3 take qwen)"
            ) from None

    __getitem__ = get

    def get_all_template_names(self) -> list[str]:
        return list(self._templates)

    def __contains__(self, name: object) -> bool:
        return name in self._templates

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)


TEMPLATE_REGISTRY = TemplateRegistry()
TEMPLATE_REGISTRY.register(
    "qwen",
    ChatTemplate(
        assistant_header="<|im_start|>assistant\n",
        user_header="<|im_start|>user\n",
        system_prompt="You are a helpful assistant.",
        end_of_turn_token="<|im_end|>\n",
        empty_thought="<think>\n\n</think>\n\n",
    ),
)
TEMPLATE_REGISTRY.register(
    "chatml",
    ChatTemplate(
        assistant_header="<|im_start|>assistant\n",
        user_header="<|im_start|>user\n",
        system_prompt="You are a helpful assistant.",
        end_of_turn_token="<|im_end|>\n",
    ),
)
