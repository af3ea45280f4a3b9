# SPDX-License-Identifier: Apache-2.0
"""The controller's HTTP API. Its documentation is served with it: /docs, /openapi.json.

Every refusal is {"error": one sentence, "kind": the error's class} with a 4xx status. On the Unix socket the
file's permissions decide who may call; on TCP the bearer token does.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from controller import epochs_view, looks, switch_views, views
from controller.changes import Status
from controller.errors import (
    BindAgainError,
    ExhaustedError,
    FieldError,
    JobError,
    PoolFullError,
    SwitchClientError,
)
from controller.explain import explain
from controller.metrics import exposition
from controller.program.faults import Shares
from controller.requests import (
    Barrier,
    Chunk,
    JobChange,
    Join,
    Name,
    NewJob,
    PortFaults,
    RequestError,
    Sync,
    Tenant,
)
from controller.service import Controller
from topologies.errors import RecordError
from wire.constants import RUN_ROOT, TOKEN, TOKEN_VARIABLE
from wire.errors import P4ReduceError
from wire.membership import MembershipError

MAX_BODY = 1 << 20
"""Bytes of a request's body."""

Chunks = Annotated[list[Chunk], Query(min_length=1, max_length=looks.FEW)]

_STATUS: dict[type[P4ReduceError], int] = {
    BindAgainError: 409,
    PoolFullError: 409,
    ExhaustedError: 409,
    JobError: 422,
    FieldError: 422,
    MembershipError: 422,
    RecordError: 422,
    SwitchClientError: 503,
}


def make_api(controller: Controller, token: str | None = None) -> FastAPI:
    """Return the application. Calls from other than the Unix socket need the bearer `token`."""
    app = FastAPI(
        title="p4reduce controller",
        version=version("p4reduce"),
        description=f"Jobs of network {controller.record.name}.",
    )
    _guard(app, token)
    _errors(app)
    _jobs(app, controller)
    _workers(app, controller)
    _network(app, controller)
    return app


def _refusal(status: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse({"error": message, "kind": kind}, status)


_HOW_TO_GIVE_IT = (
    f"export {TOKEN_VARIABLE}=$(sudo cat {RUN_ROOT}/NAME/{TOKEN}), on the machine of network NAME "
    "(Authorization: Bearer TOKEN in HTTP)"
)


def _guard(app: FastAPI, token: str | None) -> None:
    @app.middleware("http")
    async def guard(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.client is not None:  # not by the Unix socket
            given = request.headers.get("authorization", "").encode()
            if token is None or not hmac.compare_digest(given, f"Bearer {token}".encode()):
                wrong = "this is not" if given else "this address needs"
                message = f"{wrong} the controller's token: {_HOW_TO_GIVE_IT}"
                return _refusal(401, "UnauthorizedError", message)
        length = request.headers.get("content-length")
        if request.headers.get("transfer-encoding") or (length is not None and not length.isdigit()):
            return _refusal(411, "BodyError", "a request's body comes whole, with its Content-Length")
        if length is not None and int(length) > MAX_BODY:
            return _refusal(413, "BodyError", f"a request's body has at most {MAX_BODY} bytes, not {length}")
        return await call(request)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(P4ReduceError)
    async def ours(_: Request, error: P4ReduceError) -> JSONResponse:
        if isinstance(error, RequestError):
            status = error.status
        else:
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        return _refusal(status, type(error).__name__, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        if first["type"] == "json_invalid":
            return _refusal(422, "InvalidError", "the body is no JSON")
        given = (
            f", not {str(first['input'])[:80]!r}" if "input" in first and first["type"] != "missing" else ""
        )
        return _refusal(422, "InvalidError", f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}{given}")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail.lower()}; /docs lists what there is"
        return _refusal(error.status_code, "HTTPException", message)


def _jobs(app: FastAPI, controller: Controller) -> None:
    @app.get("/v1/jobs", tags=["jobs"])
    async def list_jobs() -> list[dict[str, Any]]:
        """All jobs, oldest first."""
        return [views.job(controller, job) for job in controller.jobs.values()]

    @app.post("/v1/jobs", status_code=201, tags=["jobs"])
    async def add_job(new: NewJob) -> dict[str, Any]:
        """Rent slots for a job and let its workers join."""
        return views.job(controller, await controller.add(new))

    @app.get("/v1/jobs/{name}", tags=["jobs"])
    async def show_job(name: str) -> dict[str, Any]:
        """One job with its ranks."""
        return views.job(controller, controller.job(name))

    @app.get("/v1/jobs/{name}/slots", tags=["jobs"])
    async def slots(name: str) -> list[dict[str, Any]]:
        """The slots that the present epoch has used, each with who has contributed and who has not."""
        return [asdict(view) for view in await looks.slots(controller.job(name))]

    @app.get("/v1/jobs/{name}/chunks", tags=["jobs"])
    async def chunks(name: str, chunk: Chunks) -> list[dict[str, Any]]:
        """Who has not contributed to a few chunks of the present epoch, as the switch says."""
        return [asdict(view) for view in await looks.chunks(controller.job(name), chunk)]

    @app.get("/v1/jobs/{name}/explain", tags=["jobs"])
    async def explain_job(name: str) -> dict[str, str]:
        """Why the job does not progress, or that it does, in plain words."""
        return {"text": await explain(controller, controller.job(name))}

    @app.get("/v1/jobs/{name}/counters", tags=["jobs"])
    async def job_counters(name: str) -> dict[str, Any]:
        """What became of the job's packets: [packets, bytes] by rank and verdict."""
        return await views.counters(controller.job(name))

    @app.patch("/v1/jobs/{name}", tags=["jobs"])
    async def change_job(name: str, asked: JobChange) -> dict[str, Any]:
        """Change a job's slots, rate or workers; what needs a new epoch takes effect when it begins."""
        return views.job(controller, await controller.change(name, asked))

    @app.post("/v1/jobs/{name}/drain", tags=["jobs"])
    async def drain_job(name: str) -> dict[str, Any]:
        """Let a job finish the all-reduces that it has begun, and end."""
        return views.job(controller, controller.drain(name))

    @app.delete("/v1/jobs/{name}", tags=["jobs"])
    async def remove_job(name: str) -> dict[str, str]:
        """End a job at once."""
        await controller.remove(name)
        return {"removed": name}


def _workers(app: FastAPI, controller: Controller) -> None:
    @app.post("/v1/jobs/{name}/ranks/{rank}", status_code=201, tags=["workers"])
    async def join(name: str, rank: int, asked: Join) -> dict[str, Any]:
        """Take a rank of a job; then `sync` tells when to begin."""
        job = controller.job(name)
        session = controller.sessions.join(job, rank, asked.ip, asked.udp_port)
        return {"session": session.sid, "lease": controller.sessions.lease, "n": len(job.group.hosts)}

    @app.post("/v1/sessions/{sid}/sync", tags=["workers"])
    async def sync(sid: str, told: Sync) -> dict[str, Any]:
        """Say how a worker stands and hear what it should do next; renews its lease."""
        fields = told.model_dump(exclude={"wait", "have", "missing"})
        have = tuple((low, high) for low, high in told.have)
        status = Status(**fields, have=have, missing=tuple(told.missing))
        return await controller.sessions.sync(sid, status, told.wait)

    @app.post("/v1/sessions/{sid}/barrier", tags=["workers"])
    async def barrier(sid: str, told: Barrier) -> dict[str, Any]:
        """Say that a worker has reached its number-th barrier; answers whether all have."""
        return await controller.sessions.barrier(sid, told.number, told.wait)

    @app.delete("/v1/sessions/{sid}", tags=["workers"])
    async def leave(sid: str) -> dict[str, str]:
        """Leave the job."""
        controller.sessions.leave(sid)
        return {"left": sid}


def _network(app: FastAPI, controller: Controller) -> None:
    @app.get("/v1/network", tags=["network"])
    async def network() -> dict[str, Any]:
        """The network, its switches and who holds their slots."""
        return views.network(controller)

    @app.get("/v1/events", tags=["network"])
    async def events(
        after: int = Query(0, ge=0, lt=1 << 63),
        job: str | None = None,
        wait: float = Query(0.0, ge=0, le=60),
    ) -> list[dict[str, Any]]:
        """Events after the one with that id, oldest first; waits so long for a first one."""
        until = time.monotonic() + wait
        while True:
            found = controller.store.events(after, job)
            left = until - time.monotonic()
            if found or left <= 0 or not math.isfinite(left):
                return [asdict(event) for event in found]
            await controller.noted.wait(left)

    @app.get("/v1/epochs", tags=["network"])
    async def epochs() -> list[dict[str, Any]]:
        """The present epochs of all jobs, with their members: what explains captured packets."""
        return epochs_view.epochs(controller)

    @app.get("/v1/tenants", tags=["network"])
    async def tenants() -> list[dict[str, Any]]:
        """Tenants with their quota and the slots that they use."""
        return views.tenants(controller)

    @app.put("/v1/tenants/{name}", tags=["network"])
    async def set_quota(name: Name, asked: Tenant) -> list[dict[str, Any]]:
        """Set how many slots a tenant may have."""
        controller.set_quota(name, asked.quota)
        return views.tenants(controller)

    @app.get("/v1/switches", tags=["switches"])
    async def switches() -> list[dict[str, Any]]:
        """All switches."""
        return [views.switch(controller, link) for link in controller.links.values()]

    @app.get("/v1/switches/{name}", tags=["switches"])
    async def switch(name: str) -> dict[str, Any]:
        """One switch."""
        return views.switch(controller, controller.link(name))

    @app.get("/v1/switches/{name}/entries", tags=["switches"])
    async def entries(name: str) -> dict[str, Any]:
        """All that a switch holds, as it tells: table entries, multicast groups, clone sessions, rates."""
        return await switch_views.entries(controller.link(name))

    @app.get("/v1/switches/{name}/counters", tags=["switches"])
    async def port_counters(name: str) -> dict[str, Any]:
        """What became of the packets of each port: [packets, bytes] by verdict; and what the process lost."""
        return await switch_views.counters(controller.link(name))

    @app.put("/v1/switches/{name}/faults", tags=["switches"])
    async def faults(name: str, asked: PortFaults) -> dict[str, str]:
        """Lose, duplicate or corrupt a share of a port's packets in one direction; all 0 ends it."""
        shares = Shares(asked.drop, asked.duplicate, asked.corrupt, asked.seed)
        await controller.set_faults(name, asked.port, asked.direction, shares)
        return {"switch": name}

    @app.get("/metrics", tags=["network"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """All counts, in Prometheus' text format."""
        text, kind = await exposition(controller)
        return Response(text, media_type=kind)
