"""The environments of rivals: a Python with their packages, made on demand in the user's cache.

An environment sees the packages of the Python that runs clozify, PyTorch among them, behind its own: only what a rival
pins is installed twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clozify.bench.rivals.worker import Rival
from clozify.errors import RunError
from clozify.utils.hashing import hash_key
from clozify.utils.user_cache import user_cache

READY = "clozify-ready"  # written once everything is installed


@dataclass(frozen=True)
class Environment:
    """How a method's process is started."""

    python: str
    python_path: tuple[str, ...] | None = None  # PYTHONPATH; None: not set
    failure: str = ""  # why it could not be made; nothing is run in it then

    def variables(self) -> dict[str, str]:
        """The environment variables of the process."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if self.python_path is not None:
            variables["PYTHONPATH"] = os.pathsep.join(self.python_path)
        return variables | {"TOKENIZERS_PARALLELISM": "false"}


def own_environment() -> Environment:
    """The Python that runs clozify, with everything that it can import now."""
    return Environment(sys.executable, tuple(path for path in sys.path if path))


def environment_folder(rival: Rival) -> Path:
    """Where a rival's environment is made; another Python or other requirements get another folder."""
    key = hash_key(requirements=list(rival.REQUIREMENTS), python=sys.version, prefix=sys.prefix)
    return user_cache() / "environments" / f"{rival.NAME}-{key[:8]}"


def is_ready(rival: Rival) -> bool:
    """Whether a rival's environment exists."""
    return (environment_folder(rival) / READY).is_file()


def choose_environment(rival: Rival, named: str | None) -> Environment:
    """The environment of a method: clozify's own, the one that the user named, or the one in the cache.

    `named` is a Python, or a folder with the rival's packages, which go before those of clozify's Python.
    """
    if not rival.REQUIREMENTS:
        return own_environment()
    if named is None:
        return Environment(str(_python_of(environment_folder(rival))))
    path = Path(named)
    if path.is_dir():
        return Environment(sys.executable, (str(path.resolve()),))
    path = Path(shutil.which(named) or named)
    if not path.is_file():
        raise RunError(
            f"--environment {rival.NAME}={named}: there is no such file; name a Python, or a folder with packages."
        )
    return Environment(str(path.absolute()))  # not resolved: a link of an environment says which one it is


def pinned_version(rival: Rival) -> str:
    """The version of a rival's own package that its requirements ask for; empty where it runs in clozify's Python."""
    return rival.REQUIREMENTS[0].partition("==")[2] if rival.REQUIREMENTS else ""


def package_version(rival: Rival, named: str | None) -> str:
    """The version of a rival's own package in its environment; a Python or folder that the user named is asked."""
    if not rival.REQUIREMENTS or named is None:
        return pinned_version(rival)
    environment, package, option = choose_environment(rival, named), rival.PACKAGES[0], f"{rival.NAME}={named}"
    program = f"from importlib import metadata; print(metadata.version({package!r}))"
    try:
        result = subprocess.run(
            [environment.python, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=environment.variables() | {"PYTHONSAFEPATH": "1"},  # not what lies in this folder
        )
    except OSError as error:
        raise RunError(
            f"--environment {option} cannot be started: {error.strerror}; name a Python, or a folder with packages."
        ) from None
    version = result.stdout.strip()
    if result.returncode or not version:
        raise RunError(
            f"--environment {option} does not have the package '{package}'; install it there, or leave the option out "
            "and let the command make an environment."
        )
    return version


def make_environment(rival: Rival, log: Callable[[str], None]) -> None:
    """Make a rival's environment and install its requirements; says so first."""
    folder = environment_folder(rival)
    log(f"making an environment for {rival.TITLE} in {folder}: pip install {' '.join(rival.REQUIREMENTS)}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    venv.EnvBuilder(with_pip=True, symlinks=os.name != "nt").create(folder)
    python = _python_of(folder)
    purelib = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    own = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (Path(purelib) / "clozify_packages.pth").write_text("\n".join(own) + "\n", encoding="utf-8")
    result = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *rival.REQUIREMENTS],
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "pip.txt").write_text(result.stdout + result.stderr, encoding="utf-8")
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: see its log"]
        raise RunError(
            f"The environment for {rival.TITLE} could not be made: {lines[-1].removeprefix('ERROR: ').rstrip('.')}; "
            f"see {folder / 'pip.txt'}, or name a Python that has it: --environment {rival.NAME}=PYTHON."
        )
    (folder / READY).touch()


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
