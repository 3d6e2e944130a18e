"""The teacher `kind = "openai"`: a large language model behind an address is asked for each row's label."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.budget import Budget
from clozify.config.task import Task
from clozify.config.teachers import OpenAIEntry
from clozify.data.rows import Rows
from clozify.errors import TaskError, require_package
from clozify.teachers.base import Cost, ScoringContext
from clozify.teachers.llm_answers import Answer, AnswerReader, to_log, vote_fractions
from clozify.teachers.llm_cache import AnswerCache, Spent, request_key
from clozify.teachers.llm_client import ChatClient, RequestRefusedError
from clozify.teachers.llm_limits import LimitReachedError, Limits, check_budget, price
from clozify.teachers.llm_prompt import Message, PromptBuilder, Texts, estimate_tokens, iterate_texts

PRIVATE = ("kind", "name", "api_key_env", "concurrency", "timeout", "retries", "input_price", "output_price")
SAMPLE_ROWS = 1_000  # rows whose length is measured for an estimate
REFUSED_AT_FIRST = 5  # rows that a server may refuse before it answers one


class OpenAITeacher:
    """Asks a model for each row's label; see `OpenAIEntry` for its settings and docs/teachers.md for what is sent."""

    kind = "openai"
    learns_from_labeled = False  # T gives examples, but a row of T is never its own one: no need to cross-fit

    def __init__(self, entry: OpenAIEntry, task: Task, budget: Budget | None = None) -> None:
        if problems := entry.problems(task.fields, task.labels):
            raise TaskError(problems)
        self.name = entry.name or entry.model
        check_budget(entry, self.name, budget)
        self._entry, self._task, self._budget = entry, task, budget

    @property
    def row_limit(self) -> int | None:
        """How many rows it is asked about at most; None for all. Under a limit the most uncertain rows come first."""
        budget = self._budget or Budget()
        counts = [n for n in (self._entry.rows, self._entry.max_requests, budget.requests) if n is not None]
        if self._entry.max_tokens is not None or budget.tokens is not None or budget.price is not None:
            counts.append(sys.maxsize)  # how many rows that is shows later
        return min(counts, default=None)

    def key(self) -> dict[str, Any]:
        """What the scores depend on: all settings but those of how requests are sent; the limits, too."""
        key = {name: value for name, value in self._entry.model_dump(mode="json").items() if name not in PRIVATE}
        if self._budget is not None:
            prices = (self._entry.input_price, self._entry.output_price)
            limits = (self._budget.requests, self._budget.tokens, self._budget.price)
            key["budget"] = [*limits, *(prices if self._budget.price is not None else ())]
        return {"kind": self.kind, **key}

    def cost(self, rows: Rows, labeled: Rows | None = None) -> Cost:
        """An estimate: a token is four bytes, and each row is asked about `answers` times (once with `logprobs`).

        Without `labeled` the examples are taken to be as long as the rows.
        """
        entry = self._entry
        sample = rows.select(np.arange(min(len(rows), SAMPLE_ROWS)))
        builder = PromptBuilder(entry, self._task, labeled)
        texts = list(iterate_texts(sample))
        tokens = sum(estimate_tokens(builder.messages(row)) for row in texts)
        if labeled is None:
            tokens += entry.examples * sum(sum(map(len, row.values())) // 4 + 5 for row in texts)
        per_request = tokens / max(len(texts), 1)
        requests = min(len(rows), entry.rows or len(rows)) * (1 if entry.logprobs is True else entry.answers)
        budget = self._budget or Budget()
        output = min(entry.answer_tokens, 16)
        per_price = price(entry, round(per_request), output)
        limits: list[float] = [n for n in (entry.max_requests, budget.requests) if n is not None]
        limits += [n // (per_request + output) for n in (entry.max_tokens, budget.tokens) if n is not None]
        limits += [budget.price // per_price] if budget.price is not None and per_price else []
        requests = int(min([requests, *limits]))
        inputs, outputs = round(requests * per_request), requests * output
        return Cost(requests, inputs, outputs, price(entry, inputs, outputs))

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Log-probabilities of the labels, (rows, labels); NaN where the model named no label or was not asked."""
        require_package("openai", "llm", f"The teacher '{self.name}'")
        order = _most_uncertain(len(rows), self._entry.rows, context.uncertainty)
        cache = AnswerCache(context.cache)
        client = ChatClient(self._entry, self.name)
        try:
            limits = Limits(self._entry, self.name, cache, self._budget)
            asking = _Asking(PromptBuilder(self._entry, self._task, context.labeled), client, cache, limits, context)
            probabilities = asking.ask_all(rows.select(order))
            asking.log_summary()
        finally:
            client.close()
            cache.close()
        scores = np.full((len(rows), len(self._task.labels)), np.nan, dtype=np.float32)
        scores[order] = to_log(probabilities, len(self._task.labels))
        return scores


def _most_uncertain(count: int, limit: int | None, uncertainty: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """The indices of the rows to ask about, the most uncertain first; rows of equal uncertainty in their order."""
    order = np.arange(count) if uncertainty is None else np.argsort(-uncertainty, kind="stable")
    return order[:limit]


class _Asking:
    """Asks about rows, several at a time, and keeps every answer."""

    def __init__(
        self,
        prompts: PromptBuilder,
        client: ChatClient,
        cache: AnswerCache,
        limits: Limits,
        context: ScoringContext,
    ) -> None:
        self._prompts, self._client, self._cache, self._limits, self._context = prompts, client, cache, limits, context
        self._entry, self._labels = prompts.entry, len(prompts.task.labels)
        self._reader = AnswerReader(prompts.task, prompts.codes)
        self._server = request_key({"base_url": self._entry.base_url, "model": self._entry.model})
        self._lock = threading.Lock()  # of what follows
        self._locks: dict[str, threading.Lock] = {}  # of requests under way: the same one is not sent twice
        self._sent = self._refused = self._no_label = self._over_limit = 0
        self._answered = False
        if refused := cache.server_fact(f"{self._server} without"):
            client.without = frozenset(json.loads(refused))
        client.gives_logprobs = cache.server_fact(f"{self._server} logprobs") == "given"

    def ask_all(self, rows: Rows) -> list[NDArray[np.float64] | None]:
        """Probabilities of the labels for each row, (labels,) each; None where the model abstains."""
        probabilities: list[NDArray[np.float64] | None] = [None] * len(rows)
        texts = enumerate(iterate_texts(rows))
        failed = threading.Event()

        def work(most: int | None = None) -> None:
            done = 0
            while not failed.is_set() and done != most:
                with self._lock:
                    row = next(texts, None)
                if row is None:
                    return
                try:
                    probabilities[row[0]] = self._ask(row[1])
                except BaseException:
                    failed.set()
                    raise
                done += 1

        work(1)  # alone: a wrong key or address fails once, and one request shows what the server can do
        with ThreadPoolExecutor(self._entry.concurrency) as pool:
            try:
                futures = [pool.submit(work) for _ in range(self._entry.concurrency)]
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            finally:
                failed.set()  # requests under way are awaited and kept, no others are sent
        return probabilities

    def log_summary(self) -> None:
        """Log how many requests were sent, and why rows got no vote."""
        spent = self._cache.spent(self._client.teacher)
        costs = f", {spent.price:.4f} in money" if spent.price else ""
        lines = [
            f"{self._sent:,} requests sent; in all {spent.requests:,} requests and {spent.tokens:,} tokens{costs}",
            f"a limit is reached: no vote on {self._over_limit:,} rows" if self._over_limit else "",
            f"no label in the answers: no vote on {self._no_label:,} rows" if self._no_label else "",
            f"refused by the server: no vote on {self._refused:,} rows" if self._refused else "",
        ]
        for line in filter(None, lines):
            self._log(line)

    def _log(self, line: str) -> None:
        self._context.log(f"{self._client.teacher}: {line}")

    def _ask(self, texts: Texts) -> NDArray[np.float64] | None:
        """Probabilities of the labels for one row: (labels,)."""
        messages = self._prompts.messages(texts)
        samples: list[int | None] = []
        try:
            if self._wants_logprobs():
                answer = self._answer(messages, logprobs=True)
                if answer is not None:
                    return self._from_logprobs(messages, answer)
            for sample in range(self._entry.answers):
                samples.append(self._sample(messages, sample))  # noqa: PERF401 (kept where a later one fails)
        except LimitReachedError:
            if not any(label is not None for label in samples):
                self._count("_over_limit")
                return None
        except RequestRefusedError as error:
            self._count("_refused")
            if not self._answered and self._refused >= REFUSED_AT_FIRST:
                raise self._client.refused(str(error)) from None
            return None
        probabilities = vote_fractions(samples, self._labels)
        if probabilities is None:
            self._count("_no_label")
        return probabilities

    def _wants_logprobs(self) -> bool:
        return self._entry.logprobs is not False and "logprobs" not in self._client.without

    def _from_logprobs(self, messages: Sequence[Message], answer: Answer) -> NDArray[np.float64] | None:
        probabilities = self._reader.probabilities(answer)
        if probabilities is None:
            again = self._answer(self._prompts.reminder(messages, answer.text), logprobs=True)
            probabilities = None if again is None else self._reader.probabilities(again)
        if probabilities is None:
            self._count("_no_label")
        return probabilities

    def _sample(self, messages: Sequence[Message], sample: int) -> int | None:
        """The label in one answer, which is asked for a second time if it is none."""
        answer = self._answer(messages, sample=sample)
        label = None if answer is None else self._reader.label(answer.text)
        if answer is not None and label is None:
            answer = self._answer(self._prompts.reminder(messages, answer.text), sample=sample)
            label = None if answer is None else self._reader.label(answer.text)
        return label

    def _answer(self, messages: Sequence[Message], logprobs: bool = False, sample: int = 0) -> Answer | None:
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
                if not self._client.drop_refused(settings, str(error), self._save_refused):
                    raise
                continue
            self._answered = True
            if logprobs and not self._check_logprobs(answer, settings):
                continue
            return answer

    def _send(self, key: str, messages: Sequence[Message], settings: dict[str, Any]) -> Answer:
        """Send a request and keep its answer."""
        inputs, outputs = estimate_tokens(messages), self._entry.answer_tokens
        with self._limits.request(Spent(1, inputs + outputs, price(self._entry, inputs, outputs) or 0.0)):
            answer = self._client.complete(messages, settings)
            tokens = answer.input_tokens, answer.output_tokens
            cost = Spent(1, sum(tokens), price(self._entry, *tokens) or 0.0)
            self._cache.add(key, answer, self._client.teacher, cost)
        self._count("_sent")
        return answer

    def _check_logprobs(self, answer: Answer, settings: dict[str, Any]) -> bool:
        """Remember whether the server gives log-probabilities; False where it ignores that they are asked for."""
        if answer.tokens is None and not self._client.gives_logprobs:
            return not self._client.drop_refused(settings, "logprobs", self._save_refused)
        if not self._client.gives_logprobs:
            self._client.gives_logprobs = True
            self._cache.set_server_fact(f"{self._server} logprobs", "given")
        return True

    def _save_refused(self, names: frozenset[str]) -> None:
        self._cache.set_server_fact(f"{self._server} without", json.dumps(sorted(names)))
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
