"""docs/tutorial.md as a reader follows it: every file written, every command typed, in order, in an empty folder.

Three things are changed. Trainings take few steps, and they and the part with many labels read shorter rows with the
smaller built-in model, by options that are appended; the server takes a port that is free, and the request goes
there. What the tutorial shows of a command's output must be printed, but for numbers.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE)
FEW_STEPS = "".join(
    f" --set {section}.max_steps={steps}"
    for section, steps in {"finetune_without_lm": 1, "distill": 2, "supervised": 1}.items()
)
SHORT = 24  # tokens of a row


def commands(block: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that it is said to print."""
    result: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            result.append((line.removeprefix("$ "), []))
        else:
            result[-1][1].append(line)
    return result


def but_for_numbers(line: str) -> str:
    return " ".join(re.sub(r"[\d.,]+", "0", line).split())


@pytest.fixture
def shell(tmp_path):
    """Runs a command as a shell does and returns what it printed; a server is left running until the test ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = Path(sys.modules["clozify"].__file__).parents[1]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(source),  # the package under test, also where another is installed
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "COLUMNS": "80",
    }
    folder = tmp_path / "empty"
    folder.mkdir()
    servers = []

    def run(command: str) -> str:
        if command.startswith("clozify serve "):
            server = subprocess.Popen(
                f"exec {command} --port {port}",
                shell=True,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            servers.append(server)
            return server.stdout.readline().replace(str(port), "8000")
        if command.startswith("clozify train "):
            command += f"{FEW_STEPS} --set max_seq_length={SHORT} --model builtin:mini"
        if command.startswith(("clozify check tags", "clozify zero-shot tags")):  # four patterns and 180 rows
            command += f" --max-length {SHORT} --model builtin:mini"
        command = command.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    run.folder = folder
    yield run
    for server in servers:
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        server.stdout.close()


@pytest.mark.slow
def test_the_tutorial_runs_as_written(shell):
    """A tutorial rots in silence: an option is renamed, a line is printed no more, and only newcomers notice."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here to ask the server with; install one")
    ran = []
    for language, file, content in BLOCKS:
        if file:
            (shell.folder / file).write_text(content, encoding="utf-8")
        for command, shown in commands(content) if language == "console" else []:
            printed = shell(command)
            expected = {but_for_numbers(line) for line in printed.splitlines()}
            unknown = [line for line in shown if "..." not in line and but_for_numbers(line) not in expected]
            assert not unknown, f"{command} does not print {unknown}, but\n{printed}"
            ran.append(" ".join(command.split()[:2]))
    wanted = "init check zero-shot train suggest predict evaluate export serve"
    assert {f"clozify {name}" for name in wanted.split()} <= set(ran)
    assert "curl -s" in ran


def test_every_command_of_the_tutorial_stands_where_the_test_finds_it():
    """A command in a block of another kind would be shown and never run; only the setup may be."""
    kinds = [(language, bool(file)) for language, file, _ in BLOCKS]
    assert len(BLOCKS) == PAGE.count("\n```") / 2
    assert kinds[0] == ("sh", False)
    assert set(kinds[1:]) == {("toml", True), ("python", True), ("console", False)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", BLOCKS[0][2], re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
