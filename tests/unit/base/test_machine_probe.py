"""Probes of machines: what a name server that answers nobody does to them."""

import asyncio
import socket
import threading
import time
from typing import Any

import pytest

from paceline.base.machine_probe import WAIT_S, answers

LATE_S = 10 * WAIT_S


def test_a_name_server_that_answers_nobody_holds_up_no_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find, over = socket.getaddrinfo, threading.Event()

    def get(host: str, *args: Any, **options: Any) -> Any:
        if host == "127.0.0.1" or options.get("flags", 0) & socket.AI_NUMERICHOST:
            return find(host, *args, **options)
        over.wait(LATE_S)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def scenario() -> list[bool]:
        probes = [answers("tcp://chief.invalid") for _ in range(40)]
        return await asyncio.gather(*probes, answers("tcp://127.0.0.1"))

    monkeypatch.setattr(socket, "getaddrinfo", get)
    begun_s = time.monotonic()
    assert asyncio.run(scenario()) == [*[False] * 40, True]
    assert time.monotonic() - begun_s < LATE_S / 2
    over.set()


def test_a_machine_is_known_by_name_and_one_that_nobody_knows_does_not_answer() -> None:
    async def scenario() -> tuple[bool, bool]:
        return await answers("tcp://localhost"), await answers("tcp://chief.invalid")

    assert asyncio.run(scenario()) == (True, False)
