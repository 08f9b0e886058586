"""The types of the public modules, as mypy and pyright see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).parent
USAGE = HERE / "typed_usage.py"


def run(*command: str) -> str:
    # pyright asks the first Python of the path where packages are.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_mypy_on_what_users_write(tmp_path: Path) -> None:
    run("mypy", "--strict", "--no-incremental", "--cache-dir", str(tmp_path), str(USAGE))


def test_mypy_on_the_package(tmp_path: Path) -> None:
    run("mypy", "--strict", "--no-incremental", "--cache-dir", str(tmp_path), "-p", "langgraph_ckpt")


def test_pyright_on_what_users_write(tmp_path: Path) -> None:
    rules = {
        "include": [str(USAGE)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        # LangGraph's and psycopg's own types are incomplete.
        "reportUnknownMemberType": False,
        "reportMissingTypeStubs": False,
        "reportUnusedExpression": False,
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(rules))
    run("pyright", "--project", str(project))


def test_pyright_knows_every_public_type() -> None:
    run("pyright", "--verifytypes", "langgraph_ckpt", "--ignoreexternal")
