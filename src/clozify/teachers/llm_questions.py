"""Asks a large language model about rows: several at a time, within limits, each answer kept as soon as it is there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.teachers.llm_answers import Answer, AnswerReader, vote_fractions
from clozify.teachers.llm_cache import AnswerCache, request_key
from clozify.teachers.llm_client import ChatClient, RequestRefusedError
from clozify.teachers.llm_limits import Limits, Reservation, Spent, request_cost
from clozify.teachers.llm_prompt import Message, PromptBuilder, estimate_tokens, iterate_texts

REFUSED_AT_FIRST = 5  # rows that a server may refuse before it answers one


@dataclass(frozen=True)
class Question:
    """A row that is asked about."""

    index: int
    messages: Sequence[Message]
    reservation: Reservation


class Questions:
    """The questions about some rows, and what became of them."""

    def __init__(
        self,
        prompts: PromptBuilder,
        client: ChatClient,
        cache: AnswerCache,
        limits: Limits,
        log: Callable[[str], None],
    ) -> None:
        self._prompts, self._client, self._cache, self._limits, self._log_line = prompts, client, cache, limits, log
        self._entry, self._labels = prompts.entry, len(prompts.task.labels)
        self._reader = AnswerReader(prompts.task, prompts.codes)
        self._server = request_key({"base_url": self._entry.base_url, "model": self._entry.model})
        self._lock = threading.Lock()  # of what follows
        self._locks: dict[str, threading.Lock] = {}  # of requests under way: the same one is not sent twice
        self._sent = self._refused = self._no_label = self._over_limit = 0
        self._answered = False
        if refused := cache.server_fact(f"{self._server} without"):
            client.without = frozenset(json.loads(refused))
        self._known_refused = client.without
        self._reason = ""  # of the last refusal
        client.gives_logprobs = cache.server_fact(f"{self._server} logprobs") == "given"

    def ask_all(self, rows: Rows) -> list[NDArray[np.float64] | None]:
        """Probabilities of the labels for each row, (labels,) each; None where the model abstains."""
        self._log(f"asks {self._client.destination} about {len(rows):,} rows")
        probabilities: list[NDArray[np.float64] | None] = [None] * len(rows)
        questions, next_question = self._questions(rows), threading.Lock()
        failed = threading.Event()

        def work(most: int | None = None) -> None:
            done = 0
            while not failed.is_set() and done != most:
                with next_question:
                    question = next(questions, None)
                if question is None:
                    return
                try:
                    probabilities[question.index] = self._ask(question)
                except BaseException:
                    failed.set()
                    raise
                finally:
                    question.reservation.close()
                done += 1

        work(1)  # alone: a wrong key or address fails once, and one request shows what the server can do
        with ThreadPoolExecutor(self._entry.concurrency) as pool:
            try:
                futures = [pool.submit(work) for _ in range(self._entry.concurrency)]
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            finally:
                failed.set()  # requests under way are awaited and kept, no others are sent
        if self._refused and not self._answered:
            raise self._client.refused(self._reason)
        return probabilities

    def _questions(self, rows: Rows) -> Iterator[Question]:
        """The questions in the order of the rows, until a limit is reached."""
        for index, texts in enumerate(iterate_texts(rows)):
            messages = self._prompts.messages(texts)
            requests = 1 if self._wants_logprobs() else self._entry.answers
            if self._wants_logprobs() and not self._client.gives_logprobs and self._entry.logprobs == "auto":
                requests = 1 + self._entry.answers  # in case that there are none
            reservation = self._limits.reserve(self._estimate(messages), requests)
            if reservation is None:
                self._over_limit = len(rows) - index
                return
            yield Question(index, messages, reservation)

    def _estimate(self, messages: Sequence[Message]) -> Spent:
        return request_cost(self._entry, estimate_tokens(messages), self._entry.answer_tokens)

    def log_summary(self, spent: Spent) -> None:
        """Log how many requests were sent, and why rows got no vote; `spent` is what the teacher's answers cost."""
        costs = f", price {spent.price:.4f}" if spent.price else ""
        lines = [
            f"{self._sent:,} requests sent; all answers so far: {spent.requests:,}, {spent.tokens:,} tokens{costs}",
            f"a limit is reached: no vote on {self._over_limit:,} rows" if self._over_limit else "",
            f"no label in the answers: no vote on {self._no_label:,} rows" if self._no_label else "",
            f"refused by the server: no vote on {self._refused:,} rows ({self._reason})" if self._refused else "",
        ]
        for line in filter(None, lines):
            self._log(line)

    def _log(self, line: str) -> None:
        self._log_line(f"{self._client.teacher}: {line}")

    def _ask(self, question: Question) -> NDArray[np.float64] | None:
        """Probabilities of the labels for one row: (labels,)."""
        try:
            answer = self._answer(question, question.messages, logprobs=True) if self._wants_logprobs() else None
            if answer is not None:
                probabilities = self._from_logprobs(question, answer)
            else:
                samples = [self._sample(question, sample) for sample in range(self._entry.answers)]
                probabilities = vote_fractions(samples, self._labels)
        except RequestRefusedError as error:
            self._count("_refused")
            self._reason = str(error)
            if not self._answered and self._refused >= REFUSED_AT_FIRST:
                raise self._client.refused(self._reason) from None
            return None
        if probabilities is None:
            self._count("_no_label")
        return probabilities

    def _wants_logprobs(self) -> bool:
        return self._entry.logprobs is not False and "logprobs" not in self._client.without

    def _from_logprobs(self, question: Question, answer: Answer) -> NDArray[np.float64] | None:
        """Probabilities from an answer's tokens; the question is asked a second time if they are those of no label."""
        probabilities = self._reader.probabilities(answer)
        if probabilities is None and question.reservation.extend():
            again = self._answer(question, self._prompts.reminder(question.messages, answer.text), logprobs=True)
            probabilities = None if again is None else self._reader.probabilities(again)
        return probabilities

    def _sample(self, question: Question, sample: int) -> int | None:
        """The label in one answer, which is asked for a second time if it is none."""
        answer = self._answer(question, question.messages, sample=sample)
        label = None if answer is None else self._reader.label(answer.text)
        if answer is not None and label is None and question.reservation.extend():
            answer = self._answer(question, self._prompts.reminder(question.messages, answer.text), sample=sample)
            label = None if answer is None else self._reader.label(answer.text)
        return label

    def _answer(
        self, question: Question, messages: Sequence[Message], logprobs: bool = False, sample: int = 0
    ) -> Answer | None:
        """The kept answer, or the server's; None where it has no log-probabilities and they were asked for."""
        while True:
            settings = self._client.settings(logprobs, sample)
            if logprobs and "logprobs" not in settings:
                return None
            request = {"base_url": self._entry.base_url, "model": self._entry.model, "messages": messages}
            key = request_key({**request, "settings": settings, "sample": sample})
            try:
                with self._locked(key):
                    answer = self._cache.get(key) or self._send(key, messages, settings)
            except RequestRefusedError as error:
                if not self._client.drop_refused(settings, str(error)):
                    raise
                continue
            question.reservation.use(key, request_cost(self._entry, answer.input_tokens, answer.output_tokens))
            self._answered = True
            if logprobs and not self._check_logprobs(answer, settings):
                continue
            self._save_refused()
            return answer

    def _send(self, key: str, messages: Sequence[Message], settings: dict[str, Any]) -> Answer:
        """Send a request and keep its answer."""
        answer = self._client.complete(messages, settings)
        self._cache.add(key, answer)
        self._count("_sent")
        return answer

    def _check_logprobs(self, answer: Answer, settings: dict[str, Any]) -> bool:
        """Remember whether the server gives log-probabilities; False where it ignores that they are asked for."""
        if answer.tokens is None and not self._client.gives_logprobs:
            return not self._client.drop_refused(settings, "logprobs")
        if not self._client.gives_logprobs:
            self._client.gives_logprobs = True
            self._cache.set_server_fact(f"{self._server} logprobs", "given")
        return True

    def _save_refused(self) -> None:
        """Remember and log what the server refuses, once it has answered a request without it."""
        with self._lock:
            names, self._known_refused = self._client.without - self._known_refused, self._client.without
        if not names:
            return
        self._cache.set_server_fact(f"{self._server} without", json.dumps(sorted(self._known_refused)))
        if "logprobs" in names:
            kind = f"{self._entry.answers} answers a row" if self._entry.answers > 1 else "one answer a row is a vote"
            self._log(f"the server gives no log-probabilities; {kind}")
        if others := sorted(names - {"logprobs"}):
            self._log(f"the server refuses the setting {', '.join(others)}; requests go without it")

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def _locked(self, key: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())
