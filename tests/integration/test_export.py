"""Exports to ONNX: the same answers from the same commands, and none where they would differ."""

import json
import shutil
import sys

import numpy as np
import pytest

from clozify.errors import ClozifyError
from clozify.inference import export as module
from clozify.inference.export import export
from clozify.inference.finished_run import evaluate, predict
from clozify.serving.model import ServedModel
from tests.integration.conftest import TASK
from tests.integration.serving import post, running, save_classifier

ROWS = "text,label\n" + "".join(f"{word} number {n},{1 + n % 2}\n" for n in range(9) for word in ("game", "a mail" * n))


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    (folder / "rows.csv").write_text(ROWS)
    save_classifier(tiny_folder("bert"), TASK, folder / "classifier")
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    """Written once, by the function behind the command."""
    result = export(folder / "classifier", folder / "onnx", data=folder / "rows.csv")
    return folder / "onnx", result


@pytest.fixture
def written(exported, monkeypatch):
    """The graph that is written already stands in for a new one, which takes PyTorch many seconds."""

    def copy(classifier, source, folder):
        for file in exported[0].iterdir():
            shutil.copy(file, folder)
        (folder / module.EXPORT_FILE).unlink()

    monkeypatch.setattr(module, "_write_folder", copy)


def test_an_export_answers_as_the_classifier_does(exported, folder):
    """Rows of other numbers and lengths than the graph was made with must do as well."""
    run_path, result = exported
    assert result.agreement == 1
    assert result.largest_difference < 1e-5
    assert json.loads((run_path / "export.json").read_text()) == result.to_json()
    for rows in (ROWS, "text\nx\n", "text\n" + "utility for data. " * 30 + "\n"):
        (folder / "other.csv").write_text(rows)
        before = predict(folder / "classifier", folder / "other.csv").probabilities
        after = predict(run_path, folder / "other.csv").probabilities
        assert np.allclose(before, after, atol=1e-5)
    both = [evaluate(where, folder / "rows.csv").accuracy for where in (folder / "classifier", run_path)]
    assert both[0] == both[1] == result.accuracy.onnx


def test_an_export_holds_all_that_it_needs_and_no_weights_of_pytorch(exported):
    assert {path.name for path in exported[0].iterdir()} == {
        "model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json", "task.toml", "export.json",
    }  # fmt: skip


def test_the_graph_takes_any_number_of_rows_of_any_length(exported):
    model = ServedModel(exported[0])._classifier.model
    assert [arguments.shape for arguments in model.session.get_inputs()] == [["batch", "sequence"]] * 3


def test_an_export_is_served(exported, folder):
    with running(ServedModel(exported[0])) as server:
        result = post(server.port, {"text": "game number 3"})[1]["predictions"][0]
        assert post(server.port, path="/health")[1]["model"] == "a classifier in ONNX"
    (folder / "one.csv").write_text("text\ngame number 3\n")
    right = predict(folder / "classifier", folder / "one.csv").probabilities
    assert list(result["probabilities"].values()) == pytest.approx(right[0].tolist(), abs=1e-5)


def test_eight_bits_are_smaller_and_their_agreement_is_reported(written, folder, monkeypatch, capsys):
    from clozify import cli

    command = ["clozify", "export", str(folder / "classifier"), "--int8", "--data", str(folder / "rows.csv")]
    monkeypatch.setattr(sys, "argv", [*command, "--agreement", "0.5", "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    result = json.loads(capsys.readouterr().out)
    assert 0.5 <= result["agreement"] <= 1
    assert 0 < result["largest_difference"] < 0.2
    small = folder / "classifier" / "onnx-int8" / "model.onnx"
    assert small.stat().st_size < 0.8 * (folder / "onnx" / "model.onnx").stat().st_size


def saturating_product(activations, weights):
    """uint8 @ int8 as vpmaddubsw and vpmaddwd compute it: pairs of products are added in saturating 16 bits."""
    if activations.shape[-1] % 2:  # padded with a zero
        activations = np.pad(activations, [(0, 0)] * (activations.ndim - 1) + [(0, 1)])
        weights = np.pad(weights, [(0, 1), (0, 0)])
    left, right = activations.astype(np.int64), weights.astype(np.int64)
    even = left[..., 0::2, None] * right[0::2]  # (..., pairs, columns)
    odd = left[..., 1::2, None] * right[1::2]
    return np.clip(even + odd, -32768, 32767).sum(axis=-2)


def test_the_emulation_saturates_as_processors_without_vnni_do():
    assert saturating_product(np.array([255, 255], np.uint8), np.array([[127], [127]], np.int8)) == 32767
    assert saturating_product(np.array([255, 255, 3], np.uint8), np.array([[-128], [-1], [2]], np.int8)) == -32762
    assert saturating_product(np.array([255, 255], np.uint8), np.array([[64], [64]], np.int8)) == 2 * 255 * 64


def test_eight_bits_answer_alike_on_every_processor(exported, tmp_path):
    """No sum of two products leaves 16 bits, so instructions that saturate there give the exact sums too."""
    import onnx
    import onnxruntime
    from onnx import numpy_helper

    shutil.copy(exported[0] / "model.onnx", tmp_path / "model.onnx")
    module._quantize(tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    products = [node for node in graph.graph.node if node.op_type == "MatMulInteger"]
    assert len(products) == 14  # two layers of six, the pooler and the classifier's head
    for node in products:
        weights = constants[node.input[1]].astype(np.int64)  # (inputs, columns)
        assert constants[node.input[1]].dtype == np.int8
        assert not constants[node.input[3]].any()  # no zero point is taken off before the product
        ordered = np.sort(weights, axis=0)  # the worst case: both activations of a pair are 255
        assert 255 * np.maximum(ordered[-2:], 0).sum(axis=0).max() <= 32767
        assert 255 * np.minimum(ordered[:2], 0).sum(axis=0).min() >= -32768

    names = [name for node in products for name in (node.input[0], node.input[2], node.output[0])]
    present = {output.name for output in graph.graph.output}
    for name in dict.fromkeys(names):
        if name not in present:
            graph.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # keeps the sums visible
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(5, 600, (3, 17))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    values = dict(zip(names, session.run(names, inputs), strict=True))
    for node in products:
        weights = constants[node.input[1]]
        activations, zero_point, sums = (values[name] for name in (node.input[0], node.input[2], node.output[0]))
        exact = activations.astype(np.int64) @ weights.astype(np.int64)
        assert np.array_equal(saturating_product(activations, weights), exact)
        assert np.array_equal(sums, exact - zero_point.astype(np.int64) * weights.astype(np.int64).sum(axis=0))
    fused = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert np.allclose(fused.run(["logits"], inputs)[0], session.run(["logits"], inputs)[0], atol=1e-4)


def test_an_export_that_answers_otherwise_is_refused_and_nothing_is_left(written, folder, monkeypatch):
    """A graph that is quietly wrong is worse than none."""
    honest = module.compare

    def off(*arguments):
        return honest(*arguments).model_copy(update={"agreement": 0.9})

    monkeypatch.setattr(module, "compare", off)
    for int8 in (False, True):
        with pytest.raises(ClozifyError, match="nothing was written"):
            export(folder / "classifier", folder / "wrong", int8, folder / "rows.csv")
    assert not [path.name for path in folder.iterdir() if "wrong" in path.name]


def test_what_cannot_be_exported_is_told_in_a_sentence(exported, folder, tmp_path, monkeypatch):
    with pytest.raises(ClozifyError, match="name some with --data"):
        export(folder / "classifier", tmp_path / "a", int8=True)
    with pytest.raises(ClozifyError, match="an export already"):
        export(exported[0], tmp_path / "a")
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ClozifyError, match="something else"):
        export(folder / "classifier", tmp_path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ClozifyError, match=r"pip install 'clozify\[onnx\]'"):
        export(folder / "classifier", tmp_path / "a")
    (tmp_path / "broken").mkdir()
    for file in exported[0].iterdir():
        shutil.copy(file, tmp_path / "broken")
    (tmp_path / "broken" / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ClozifyError, match="cannot be loaded"):
        ServedModel(tmp_path / "broken")
