"""The house keeps its promises: a diagram that cannot rot, slim imports, no rooms without a name."""

import ast
import re
import subprocess
import sys

from tests.architecture import PACKAGE, ROOT, listed, module_list


def test_the_architecture_page_says_of_each_module_what_its_docstring_says() -> None:
    assert listed() == module_list(), "python -m tests.architecture writes the list anew"


def test_no_file_is_named_for_what_it_is_not() -> None:
    banned = {"utils", "common", "core", "base", "misc", "helpers"}
    assert not [path for path in PACKAGE.rglob("*") if path.stem in banned]


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint('\\n'.join(sys.modules))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_importing_palmette_and_its_commands_imports_no_torch() -> None:
    heavy = {"torch", "transformers", "sentence_transformers", "numpy", "sympy"}
    assert not heavy & loaded_by("import palmette, palmette.commands.app")
    assert not heavy & loaded_by("import palmette.api, palmette.zoo.catalog, palmette.report.page")


def test_backends_of_servers_import_no_torch_and_no_http_library_before_a_server_is_asked() -> None:
    names = ", ".join(f"palmette.backends.{name}" for name in ("openai", "sglang", "vllm"))
    assert not {"torch", "transformers", "httpx2"} & loaded_by(f"import palmette.api, {names}")


def test_nothing_of_the_gateway_is_imported_before_it_is_started() -> None:
    gateway = {"starlette", "uvicorn", "prometheus_client", "palmette.serve"}
    assert not gateway & loaded_by("import palmette.api, palmette.commands.app, palmette.commands.serve")


def test_the_search_parts_import_no_torch() -> None:
    names = ", ".join(f"palmette.search.{path.stem}" for path in (PACKAGE / "search").glob("*.py"))
    assert "torch" not in loaded_by(f"import {names}")


def test_a_module_that_imports_torch_has_it_loaded_with_quiet_threads_first() -> None:
    for path in PACKAGE.rglob("*.py"):
        imported: list[str] = []
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                imported += [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported.append(node.module or "")
        if {"torch", "transformers"} & {name.split(".")[0] for name in imported}:
            assert imported[0] == "palmette.quiet_torch", f"{path}: import palmette.quiet_torch first, as others do"


def test_the_settings_of_algorithms_and_credit_import_no_torch() -> None:
    rooms = [PACKAGE / "train" / room for room in ("algorithms", "credit")]
    names = ", ".join(f"palmette.train.{room.name}.{path.stem}" for room in rooms for path in room.glob("[a-z]*.py"))
    assert not {"torch", "numpy"} & loaded_by(f"import {names}")


def test_no_committed_text_names_a_place_on_one_machine() -> None:
    listed = ["git", "-c", "safe.directory=*", "ls-files"]  # Also where a clone belongs to somebody else.
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    texts = [ROOT / name for name in found if not name.endswith((".safetensors", ".png"))]
    pattern = re.compile(r"/(?:home|root|work|Users)/\w+")
    assert not [str(path) for path in texts if path.exists() and pattern.search(path.read_text(encoding="utf-8"))]
