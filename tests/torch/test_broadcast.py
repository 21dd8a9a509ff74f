"""Weights by a broadcast over gloo between processes: they come whole, and who is missing is named."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from palmette.errors import BackendError
from palmette.scale.learning.weight_parcel import pack, unpack
from palmette.scale.transport.broadcast import BroadcastSender, receive
from palmette.scale.transport.sender import label_text, labeled, size_of

RECEIVER = """
import sys, torch
from palmette.scale.learning.weight_parcel import unpack
from palmette.scale.transport.broadcast import receive
from palmette.scale.transport.sender import labeled, size_of
label, ticket = sys.argv[1:]
parcel = labeled(label, receive(ticket, size_of(label)))
into = {"one": torch.zeros(3, 5), "two": torch.zeros(7, dtype=torch.bfloat16)}
unpack(parcel, into, 4)
print(parcel.version, float(into["one"].sum()), float(into["two"].float().sum()))
"""


def test_weights_come_whole_to_another_process() -> None:
    weights = {"one": torch.arange(15.0).reshape(3, 5), "two": torch.full((7,), 0.5, dtype=torch.bfloat16)}
    sender = BroadcastSender("127.0.0.1", wait_seconds=100.0)
    parcel = pack(weights, 4)
    sender.load(parcel)
    (ticket,) = sender.tickets(1)
    command = [sys.executable, "-W", "ignore", "-c", RECEIVER, label_text(parcel), ticket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as receiver:
        assert sender.deliver() == ""
        assert receiver.communicate()[0].split() == ["4", "105.0", "3.5"]
    # The next sending is a group of its own: a receiver that does not come is named, and nothing else is harmed.
    brief = BroadcastSender("127.0.0.1", wait_seconds=0.1)
    brief.load(parcel)
    tickets = brief.tickets(2)
    assert "receiver 1, receiver 2 of 2 receivers did not join within 0.1 s" in brief.deliver()
    with pytest.raises(BackendError, match="the weights did not come by broadcast"):
        receive(tickets[0], 64)  # The sender is gone.


def test_a_label_tells_all_of_a_parcel_but_its_content() -> None:
    parcel = pack({"one": torch.ones(2, 2)}, 7)
    again = labeled(label_text(parcel), parcel.content)
    into = {"one": torch.zeros(2, 2)}
    unpack(again, into, 7)
    assert size_of(label_text(parcel)) == 64 and bool((into["one"] == 1).all())
