"""Requests generated from the server's OpenAPI description, valid and invalid ones."""

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode

from clozify.inference.abstaining import AbstainOptions
from clozify.serving.model import ServedModel
from clozify.serving.requests import Limits
from tests.integration.conftest import TASK
from tests.integration.serving import running, save_classifier

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[AbstainOptions(), AbstainOptions(min_confidence=0.9)], ids=["all", "confident"])
def server(request, tiny_folder, tmp_path_factory):
    folder = save_classifier(tiny_folder("bert"), TASK, tmp_path_factory.mktemp("classifier"))
    with running(
        ServedModel(folder, options=request.param), Limits(max_texts=8, max_body=4_000, max_waiting=64, timeout=20)
    ) as result:
        yield result


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", ["/predict", "/health", "/metrics", "/docs"])
def test_whatever_its_description_allows_or_forbids_is_answered_as_described(server, path, mode):
    """Hand-picked bad requests are those that somebody thought of."""
    operation = schemathesis.openapi.from_url(f"{server.url}/openapi.json")[path][
        "POST" if path == "/predict" else "GET"
    ]
    if mode.is_negative and path != "/predict":
        return  # nothing is sent that could be wrong

    @hypothesis.settings(max_examples=15, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        case.call_and_validate()

    check()
