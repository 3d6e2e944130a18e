"""Sends chat requests with OpenAI's client and words its errors; leaves out settings that a server refuses."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clozify.config.teachers import OpenAIEntry
from clozify.errors import ClozifyError, ModelError, require_package
from clozify.teachers.llm_answers import Answer, Token
from clozify.teachers.llm_prompt import Message, estimate_tokens

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion

TOP_LOGPROBS = 20  # the most that OpenAI gives
REPEAT_DELAY = 0.5  # seconds before a malformed answer is asked for again, doubled each time; other errors: the client
# Settings that some servers refuse, and what takes their place; the words are searched for in the server's message.
OPTIONAL: dict[str, tuple[str, ...]] = {
    "logprobs": (),
    "max_tokens": ("max_completion_tokens",),
    "seed": (),
    "temperature": (),
}
_TOO_LONG = re.compile("context|too long|too large|length", re.IGNORECASE)  # says something about one row only


class RequestRefusedError(Exception):
    """The server refuses this request (status 400, 413 or 422), as where a text is too long for the model."""


class ChatClient:
    """A server, its model and the settings of requests.

    OpenAI's client repeats requests after status 408, 409, 429 and 5xx, time-outs and lost connections, with
    exponential back-off and jitter, or when `Retry-After` says.
    """

    def __init__(self, entry: OpenAIEntry, teacher: str) -> None:
        require_package("openai", "llm", f"The teacher '{teacher}'")
        import openai

        self.entry, self.teacher = entry, teacher
        self.host = urlsplit(entry.base_url).netloc
        self.without: frozenset[str] = frozenset()  # settings that the server refuses
        self.gives_logprobs = False  # until an answer had some
        self._lock = threading.Lock()
        self._key = os.environ.get(entry.api_key_env, "").strip()
        self._client = openai.OpenAI(
            api_key=self._key or "none",  # local servers need none, but the client does
            base_url=entry.base_url,
            timeout=entry.timeout,
            max_retries=entry.retries,
        )

    @property
    def destination(self) -> str:
        """Where requests go, and with which key, for the log."""
        key = f"the key in {self.entry.api_key_env}" if self._key else "no key"
        return f"'{self.entry.model}' at {self.host} with {key}"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def settings(self, logprobs: bool, sample: int) -> dict[str, Any]:
        """The settings of a request for a row's answer number `sample`; they are part of the answer's key."""
        several = self.entry.answers > 1 and not logprobs
        temperature = self.entry.temperature
        settings: dict[str, Any] = {
            "max_tokens": self.entry.answer_tokens,
            "temperature": temperature if temperature is not None else float(several),
            "seed": sample,
        }
        if logprobs:
            settings |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        for name in self.without & set(settings):
            value = settings.pop(name)
            settings |= dict.fromkeys(OPTIONAL[name], value)
        return settings

    def complete(self, messages: Sequence[Message], settings: dict[str, Any]) -> Answer:
        """The server's answer; raises `RequestRefusedError`, or `ModelError` where asking others makes no sense."""
        import openai

        for attempt in range(self.entry.retries + 1):
            try:
                completion = self._client.chat.completions.create(
                    model=self.entry.model,
                    messages=list(messages),  # type: ignore[arg-type] # dicts, as the client's types are
                    **settings,
                )
                return _to_answer(completion, messages)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                raise RequestRefusedError(self._scrub(_message(error))) from None
            except openai.APIStatusError as error:
                if error.status_code == 413:
                    raise RequestRefusedError(self._scrub(_message(error))) from None
                raise self._explain(error) from None
            except openai.APIResponseValidationError:
                pass  # malformed, as below
            except openai.OpenAIError as error:
                raise self._explain(error) from None
            except (ValueError, TypeError, AttributeError, IndexError):  # what the client makes of a malformed answer
                pass
            if attempt < self.entry.retries:
                time.sleep(min(REPEAT_DELAY * 2**attempt, 8.0))
        raise self._error("gives answers that are not of OpenAI's protocol; correct base_url, it often ends with /v1")

    def drop_refused(self, settings: dict[str, Any], reason: str) -> bool:
        """Leave out what the server refuses in these settings from now on; False where nothing can be left out.

        That is what its message names; else log-probabilities, which not every server words its refusal of.
        """
        with self._lock:
            if self.without & set(settings):  # another thread has learnt it in the meantime
                return True
            sent = [name for name in OPTIONAL if name in settings]
            named = set[str]() if _TOO_LONG.search(reason) else {name for name in sent if name in reason}
            if not named and "logprobs" in sent and not self.gives_logprobs and not _TOO_LONG.search(reason):
                named = {"logprobs"}
            if "logprobs" in named and self.entry.logprobs is True:
                raise self._error('gives no log-probabilities; write logprobs = "auto" or false in the task file')
            self.without |= named
            return bool(named)

    def refused(self, reason: str) -> ClozifyError:
        """The error where a server refuses every request."""
        return self._error(f"refuses every request ({reason}); correct the teacher's entry in the task file")

    def _explain(self, error: openai.OpenAIError) -> ClozifyError:
        import openai

        message = self._scrub(_message(error))
        variable = self.entry.api_key_env
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            if not self._key:
                return self._error(f"needs a key; put it into the environment variable {variable}")
            return self._error(f"refuses the key in the environment variable {variable} ({message}); correct it")
        if isinstance(error, openai.NotFoundError):
            return self._error(f"answers 404 ({message}); correct model or base_url, which often ends with /v1")
        if isinstance(error, openai.APITimeoutError):
            return self._error(
                f"did not answer within {self.entry.timeout:g} seconds, {self.entry.retries + 1} times; raise timeout "
                "in the task file, or lower concurrency, and give the command again: answers are kept"
            )
        if isinstance(error, openai.APIConnectionError):
            return self._error("cannot be reached; start it or correct base_url, and give the command again")
        if isinstance(error, openai.APIStatusError):
            status = f"still answers {error.status_code} after {self.entry.retries} repetitions ({message})"
            return self._error(f"{status}; give the command again later: answers are kept")
        return self._error(f"cannot be used ({message}); correct the teacher's entry in the task file")

    def _error(self, what: str) -> ModelError:
        return ModelError(f"The teacher '{self.teacher}': the server '{self.host}' {what}.")

    def _scrub(self, text: str) -> str:
        """The start of a message without the key, which some servers repeat."""
        return (text.replace(self._key, "***") if self._key else text)[:200]


def _message(error: openai.OpenAIError) -> str:
    """A server's own words, in one line."""
    body = getattr(error, "body", None)
    detail = body.get("message", body.get("detail")) if isinstance(body, dict) else body
    return " ".join(str(detail or getattr(error, "message", error)).split()).rstrip(".")


def _to_answer(completion: ChatCompletion, messages: Sequence[Message]) -> Answer:
    """What is kept of a completion; without a count of tokens it is estimated."""
    choice, usage = completion.choices[0], completion.usage
    text = choice.message.content or ""
    content = choice.logprobs.content if choice.logprobs is not None else None
    tokens = [
        Token(text=token.token, top=tuple((other.token, other.logprob) for other in token.top_logprobs))
        for token in content or []
    ]
    return Answer(
        text=text,
        tokens=tuple(tokens) if tokens else None,
        input_tokens=usage.prompt_tokens if usage else estimate_tokens(messages),
        output_tokens=usage.completion_tokens if usage else len(text.encode()) // 4 + 1,
    )
