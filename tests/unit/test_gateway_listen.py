"""Where the gateway listens and with which key; names of models; what a stream shows of a tree."""

import socket
from pathlib import Path

import pytest

from palmette.commands.serve import serve
from palmette.errors import ConfigError
from palmette.serve.asking.names import ModelNames, shown_name
from palmette.serve.refusals import ApiError
from palmette.serve.searching.leading import LeadingBranch, StoppedText
from palmette.serve.web.listen import KEY_VARIABLE, bound, is_loopback, read_key
from palmette.tree import Tree


def test_only_this_machine_is_served_without_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert read_key("127.0.0.1", None) is None
    for host in ("0.0.0.0", "::", "192.168.0.7", "gateway.example", ""):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match=KEY_VARIABLE):
            read_key(host, None)
    file = tmp_path / "key"
    file.write_text("k" * 20 + "\n", encoding="utf-8")
    assert read_key("0.0.0.0", file) == "k" * 20
    monkeypatch.setenv(KEY_VARIABLE, "e" * 20)
    assert read_key("0.0.0.0", None) == "e" * 20 and read_key("0.0.0.0", file) == "k" * 20
    for wrong in ("", "short", "with a space in between"):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(ConfigError):
            read_key("127.0.0.1", file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key("127.0.0.1", tmp_path / "missing")


def test_the_command_refuses_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="no key"):
        serve(host="0.0.0.0")


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            serve(port=port, policy="no-such-model")
    with pytest.raises(ConfigError, match="cannot listen on no.such.host.invalid:80"):
        bound("no.such.host.invalid", 80)


def test_names_of_models(tmp_path: Path) -> None:
    folder = tmp_path / "my:model"
    folder.mkdir()
    assert shown_name(str(folder)) == "my-model", "the path is nobody's business"
    assert shown_name("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B"
    names = ModelNames("a_b", ["best_of_n", "ets"])
    assert names.all() == ["a_b", "a_b:best-of-n", "a_b:ets"]
    assert names.strategy_of("a_b") is None and names.strategy_of("a_b:best_of_n") == "best_of_n"
    for wrong in ("a-b", "a_b:", ":ets", "a_b:ets:ets", "other:ets"):
        with pytest.raises(ApiError):
            names.strategy_of(wrong)


def test_the_reasoning_that_is_sent_follows_the_lead() -> None:
    tree = Tree((1,))
    for parent, text in ((0, "a\n"), (0, "b\n"), (1, "c\n"), (2, "d\n"), (3, "e\n")):
        tree.add(parent, (1,), text, (0.0,), finished=False)
    lead = LeadingBranch()
    assert lead.follow(tree, 1) == "a\n" and lead.follow(tree, 3) == "c\n"
    assert lead.follow(tree, 1) == "", "what was sent holds it already"
    assert lead.follow(tree, 4) == "\n[another branch leads, from step 1]\nb\nd\n"
    assert lead.follow(tree, 5) == "\n[another branch leads, from step 1]\na\nc\ne\n"


def test_nothing_that_may_become_a_stop_is_sent_before_its_time() -> None:
    text = StoppedText(["END", "xyz"])
    assert [text.add(piece) for piece in ("one E", "N two xy", "z three", "END")] == ["one ", "EN two ", "", ""]
    assert "".join(map(StoppedText([]).add, ("a", "b"))) == "ab"
