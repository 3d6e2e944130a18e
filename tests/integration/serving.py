"""Servers and clients for the tests: real sockets, real HTTP."""

import http.client
import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch

from clozify.config.recipe import load_recipe
from clozify.config.task import parse_task
from clozify.data.decision import Decision
from clozify.inference.abstaining import Abstainer
from clozify.models.classifier import new_classifier
from clozify.serving.app import PredictionService
from clozify.serving.requests import Limits
from clozify.serving.server import make_server, open_socket

JSON = {"Content-Type": "application/json"}


def save_classifier(model, task, folder):
    """An untrained classifier whose answers differ from text to text."""
    torch.manual_seed(0)
    classifier = new_classifier(model, parse_task(task), load_recipe("quick", ["max_seq_length=40"]), "cpu")
    torch.nn.init.normal_(classifier.model.classifier.weight, std=3)
    classifier.save(folder)
    return folder


class Slow:
    """In the place of a model: the label is told by the text's first letter, and not while the gate is closed."""

    description, max_batch_rows = "a stand-in", 8

    def __init__(self, task):
        self.task, self.gate, self.scored = parse_task(task), threading.Event(), []
        self.decision = Decision(self.task.labels)
        self.abstainer = Abstainer(self.decision)

    def scores(self, texts):
        assert self.gate.wait(20)
        self.scored += texts["text"]
        return np.array([[text.startswith("1"), text.startswith("2")] for text in texts["text"]], dtype=float)


@contextmanager
def running(model, limits=None, token=None):
    """A server in a thread; yields what a client needs."""
    service = PredictionService(model, limits or Limits(), token, local=True)
    server, listening = make_server(service), open_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.01)

    def stop():
        server.should_exit = True
        while not service.draining:
            time.sleep(0.01)

    try:
        yield SimpleNamespace(port=port, service=service, url=f"http://127.0.0.1:{port}", stop=stop)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def post(port, body=None, path="/predict", method=None, headers=None, timeout=30):
    """Status, content and headers of one request; a body that is not bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    data = body if body is None or isinstance(body, bytes) or hasattr(body, "__next__") else json.dumps(body).encode()
    connection.request(method or ("GET" if body is None else "POST"), path, data, JSON | (headers or {}))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    kind = answer.getheader("content-type", "")
    return answer.status, json.loads(content) if "json" in kind else content.decode(), answer.headers
