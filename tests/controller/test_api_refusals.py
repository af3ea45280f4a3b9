# SPDX-License-Identifier: Apache-2.0
"""The API refuses what is wrong: a 4xx with one sentence, and nothing has changed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from controller.api import MAX_BODY, make_api
from tests.controller.office import TOKEN, Member, Office
from tests.controller.served import Served

JOB = {"name": "new", "workers": ["h1", "h2"]}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    served = Served(1)
    try:
        with Office(tmp_path_factory.mktemp("o"), served) as made:
            yield made
    finally:
        served.close()


@pytest.fixture(scope="module")
def members(office: Office) -> list[Member]:
    return office.add("there", [7001, 7002], slots=16, tenant="alice")


def ask(
    office: Office, call: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]], peer: Any = None
) -> httpx.Response:
    """Call the application as from the Unix socket, or from the TCP address `peer`."""

    async def work() -> httpx.Response:
        transport = httpx.ASGITransport(make_api(office.controller, TOKEN), client=peer)
        async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
            return await call(client)

    return office.run(work())


def is_one_sentence(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert set(told) == {"error", "kind"}
    assert told["kind"].endswith(("Error", "Exception"))
    text: str = told["error"]
    assert "\n" not in text
    assert 10 < len(text) < 400
    return text


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/jobs", {**JOB, "name": "No Good"}, 422, "a name has 1 to 31 of a-z"),
        ("POST", "/v1/jobs", {**JOB, "name": "x" * 32}, 422, "a name has 1 to 31"),
        ("POST", "/v1/jobs", {**JOB, "name": ""}, 422, "a name has 1 to 31"),
        ("POST", "/v1/jobs", {**JOB, "name": "ok\n"}, 422, "a name has 1 to 31"),
        ("POST", "/v1/jobs", {**JOB, "name": 7}, 422, "name"),
        ("POST", "/v1/jobs", {**JOB, "tenant": "../t"}, 422, "tenant: a name has"),
        ("POST", "/v1/jobs", {"workers": ["h1"]}, 422, "name: field required"),
        ("POST", "/v1/jobs", {**JOB, "name": "there"}, 409, "job there is already there"),
        ("POST", "/v1/jobs", {**JOB, "workers": []}, 422, "workers"),
        ("POST", "/v1/jobs", {**JOB, "workers": ["h1", "h9"]}, 422, "has no host h9; it has h1, h2"),
        ("POST", "/v1/jobs", {**JOB, "workers": ["s1"]}, 422, "has no host s1"),
        ("POST", "/v1/jobs", {**JOB, "workers": ["h1", "h1"]}, 422, "host h1 is named twice"),
        ("POST", "/v1/jobs", {**JOB, "workers": ["h1"] * 257}, 422, "workers"),
        ("POST", "/v1/jobs", {**JOB, "slots": 0}, 422, "slots"),
        ("POST", "/v1/jobs", {**JOB, "slots": -1}, 422, "slots"),
        (
            "POST",
            "/v1/jobs",
            {**JOB, "slots": 1025},
            422,
            "job new cannot have 1025 slots: a switch here has 1024",
        ),
        ("POST", "/v1/jobs", {**JOB, "slots": 1 << 70}, 422, "slots"),
        ("POST", "/v1/jobs", {**JOB, "slots": "16"}, 422, "slots"),
        ("POST", "/v1/jobs", {**JOB, "slots": 1020}, 409, "1008"),
        ("POST", "/v1/jobs", {**JOB, "slots": 8, "lead": 9}, 422, "the lead of job new is 1..8"),
        ("POST", "/v1/jobs", {**JOB, "rate_bps": 1}, 422, "rate_bps"),
        ("POST", "/v1/jobs", {**JOB, "rate_bps": 10**13}, 422, "rate_bps"),
        ("POST", "/v1/jobs", {**JOB, "priority": 1}, 422, "priority"),
        ("POST", "/v1/jobs", [], 422, "the body"),
        ("GET", "/v1/jobs/gone", None, 404, "there is no job gone; there is there"),
        ("DELETE", "/v1/jobs/gone", None, 404, "there is no job gone"),
        ("POST", "/v1/jobs/gone/drain", {}, 404, "there is no job gone"),
        ("GET", "/v1/jobs/gone/slots", None, 404, "there is no job gone"),
        ("GET", "/v1/jobs/gone/explain", None, 404, "there is no job gone"),
        ("GET", "/v1/jobs/gone/counters", None, 404, "there is no job gone"),
        ("PATCH", "/v1/jobs/there", {"slots": 2000}, 422, "cannot have 2000 slots"),
        ("PATCH", "/v1/jobs/there", {"slots": 2}, 422, "lead of 4 chunks"),
        ("PATCH", "/v1/jobs/there", {"workers": ["h1", "h1"]}, 422, "host h1 is named twice"),
        ("POST", "/v1/jobs/there/ranks/2", {"ip": "10.0.0.3", "udp_port": 5}, 422, "no rank 2"),
        ("POST", "/v1/jobs/there/ranks/-1", {"ip": "10.0.0.3", "udp_port": 5}, 422, "no rank -1"),
        ("POST", "/v1/jobs/there/ranks/one", {"ip": "10.0.0.3", "udp_port": 5}, 422, "rank"),
        ("POST", "/v1/jobs/there/ranks/0", {"ip": "10.0.0.2", "udp_port": 5}, 422, "runs on h1"),
        ("POST", "/v1/jobs/there/ranks/0", {"ip": "10.0.0.1", "udp_port": 5}, 409, "held by a worker on h1"),
        ("POST", "/v1/jobs/there/ranks/0", {"ip": "10.0.0.1", "udp_port": 0}, 422, "udp_port"),
        ("POST", "/v1/sessions/abc/sync", {}, 404, "no such session"),
        ("POST", "/v1/sessions/abc/barrier", {"number": 1}, 404, "no such session"),
        ("DELETE", "/v1/sessions/abc", None, 404, "no such session"),
        ("POST", "/v1/sessions/abc/sync", {"have": [[1]]}, 422, "have"),
        ("POST", "/v1/sessions/abc/sync", {"wait": 1e9}, 422, "wait"),
        ("PUT", "/v1/tenants/alice", {"quota": -1}, 422, "quota"),
        ("PUT", "/v1/tenants/A%20B", {"quota": 1}, 422, "a name has"),
        ("GET", "/v1/switches/s9", None, 404, "there is no switch s9; there is s1"),
        ("GET", "/v1/switches/s9/entries", None, 404, "there is no switch s9"),
        ("GET", "/v1/switches/s9/counters", None, 404, "there is no switch s9"),
        ("PUT", "/v1/switches/s1/faults", {"port": 99, "direction": "in"}, 422, "has no port 99"),
        ("PUT", "/v1/switches/s1/faults", {"port": 1, "direction": "up"}, 422, "direction"),
        ("PUT", "/v1/switches/s1/faults", {"port": 1, "direction": "in", "drop": 1.5}, 422, "drop"),
        ("GET", "/v1/events?wait=1000", None, 422, "wait"),
        ("GET", f"/v1/events?after={10**30}", None, 422, "after"),
        ("GET", "/v1/nothing", None, 404, "/docs lists what there is"),
        ("PUT", "/v1/jobs", {}, 405, "/docs lists what there is"),
    ],
)
def test_a_refusal_is_one_sentence(
    office: Office, members: list[Member], method: str, path: str, body: Any, status: int, words: str
) -> None:
    before = office.controller.store.jobs()
    answer = ask(office, lambda client: client.request(method, path, json=body))
    assert answer.status_code == status, answer.text
    assert words in is_one_sentence(answer)
    assert office.controller.store.jobs() == before


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"null", b'"' + b"x" * 3000, b"[" * 50000])
def test_what_is_no_json_is_refused(office: Office, body: bytes) -> None:
    answer = ask(office, lambda client: client.post("/v1/jobs", content=body))
    assert answer.status_code in (400, 422), answer.text
    is_one_sentence(answer)


def test_a_huge_body_is_refused_by_its_length(office: Office) -> None:
    text = json.dumps({**JOB, "name": "x" * MAX_BODY}).encode()
    answer = ask(office, lambda client: client.post("/v1/jobs", content=text))
    assert answer.status_code == 413
    assert f"at most {MAX_BODY} bytes" in is_one_sentence(answer)

    async def endless() -> Any:
        yield b"x"

    answer = ask(office, lambda client: client.post("/v1/jobs", content=endless()))
    assert answer.status_code == 411


def test_a_tcp_client_needs_the_token(office: Office) -> None:
    peer = ("10.0.0.1", 4000)
    right = f"Bearer {TOKEN}"
    for given in (
        {},
        {"Authorization": "Bearer x"},
        {"Authorization": TOKEN},
        {"Authorization": right + "x"},
    ):
        for path in ("/v1/jobs", "/metrics", "/docs", "/openapi.json"):
            answer = ask(office, lambda client, p=path, h=given: client.get(p, headers=h), peer)  # type: ignore[misc]
            assert answer.status_code == 401, (path, given)
            assert "Authorization: Bearer TOKEN" in is_one_sentence(answer)
    answer = ask(office, lambda client: client.get("/v1/jobs", headers={"Authorization": right}), peer)
    assert answer.status_code == 200


def test_without_a_token_nobody_comes_in_by_tcp(office: Office) -> None:
    async def work() -> httpx.Response:
        transport = httpx.ASGITransport(make_api(office.controller), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
            return await client.get("/v1/jobs", headers={"Authorization": "Bearer None"})

    assert office.run(work()).status_code == 401


def test_the_api_documents_itself(office: Office) -> None:
    told = ask(office, lambda client: client.get("/openapi.json")).json()
    for path in ("/v1/jobs/{name}/slots", "/v1/jobs/{name}/explain", "/v1/switches/{name}/counters"):
        assert told["paths"][path]["get"]["description"]
    assert ask(office, lambda client: client.get("/docs")).status_code == 200


def test_a_quota_holds(office: Office, members: list[Member]) -> None:
    async def put(client: httpx.AsyncClient) -> httpx.Response:
        await client.put("/v1/tenants/alice", json={"quota": 20})
        refused = await client.post("/v1/jobs", json={**JOB, "tenant": "alice", "slots": 5})
        await client.put("/v1/tenants/alice", json={"quota": None})
        return refused

    answer = ask(office, put)
    assert answer.status_code == 409
    assert "tenant alice may have 20 slots and its other jobs have 16" in is_one_sentence(answer)
