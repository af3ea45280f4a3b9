# SPDX-License-Identifier: Apache-2.0
"""How to reach a network's controller: HTTP on a Unix socket in the network's folder, or on TCP with a token.

Namespaces share the file system, so the socket serves every host of the network. Only its owner may open it.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from .constants import NET_VARIABLE, RUN_ROOT
from .errors import P4ReduceError
from .hints import command

SOCKET = "controller.sock"
RESTART_SECONDS = 10.0
"""Patience that outlasts the restart of a controller that was killed."""
WITHDRAWN = "it is no longer of the job"
"""Why a rank is lost that an operator took out of its job."""
PROBE_PAUSE = 0.1
CALL_SECONDS = 30.0
"""Limit of one call beyond the time that it was asked to wait."""


class ControlError(P4ReduceError):
    """Root of what can go wrong between us and a controller; `where` is the socket or URL."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


class UnreachableControllerError(ControlError):
    """No controller answers there."""


class RefusedError(ControlError):
    """The controller refused a call; `kind` names its error's class, `status` is HTTP's."""

    def __init__(self, where: str, status: int, kind: str, message: str) -> None:
        super().__init__(where, message)
        self.status = status
        self.kind = kind


class BadNameError(ControlError):
    """A name that nothing can have."""

    def __init__(self, name: str) -> None:
        super().__init__("/v1", f"{name!r} is no name: a name has letters, digits, - and _, and nothing else")
        self.name = name


def at(*parts: object) -> str:
    """Return the path of a thing, as /v1/jobs/NAME; BadNameError where it would be that of another."""
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", str(part)):
            raise BadNameError(str(part))
    return "/v1/" + "/".join(map(str, parts))


def find_socket(net: str | None = None, root: Path = RUN_ROOT) -> Path:
    """Return the socket of network `net`, or of the only one.

    Raises UnreachableControllerError if there is no such network, or several and none is named.
    """
    net = net or os.environ.get(NET_VARIABLE)
    found = sorted(root.glob(f"[!.]*/{SOCKET}"))
    if net:
        if not (root / net).is_dir():  # where only the socket is missing, a controller is being started
            have = f"these run: {', '.join(path.parent.name for path in found)}; or s" if found else "s"
            start = f"tart it with: {command(f'net up star --name {net}')}"
            raise UnreachableControllerError(str(root / net), f"there is no network {net}; {have}{start}")
        return root / net / SOCKET
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnreachableControllerError(
            str(root), f"no network's controller runs; start a network with: {command('net up star')}"
        )
    names = ", ".join(path.parent.name for path in found)
    raise UnreachableControllerError(
        str(root),
        f"several networks run ({names}): say which (--net NAME; join(..., net=NAME); ${NET_VARIABLE})",
    )


class ControlClient:
    """Calls a controller's API. Use it as a context manager, or `close` it. Not for several threads at once.

    `address` is the socket's path, or an http:// URL with the `token` that its controller was given.
    """

    def __init__(
        self,
        address: Path | str,
        token: str | None = None,
        seconds: float = CALL_SECONDS,
        patience: float = 0.0,
    ) -> None:
        """`seconds` limits each call, beyond the time that it is asked to wait.

        `patience`: seconds to wait for somebody to listen on the socket, as while a controller restarts.
        """
        self.where = str(address)
        self._patience = patience
        self._seconds = seconds
        self._remote = self.where.startswith(("http://", "https://"))
        self._client = httpx.Client(
            transport=None if self._remote else httpx.HTTPTransport(uds=self.where),
            base_url=self.where if self._remote else "http://controller",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=seconds,
            trust_env=False,  # a proxy of the environment is not for this machine's switches
        )

    def call(self, method: str, path: str, body: Any = None, *, wait: float = 0.0, **query: Any) -> Any:
        """Return the JSON of the answer; `wait` is how long the controller was asked to take, by the body.

        A GET, which has none, asks it by its query.

        Raises UnreachableControllerError, RefusedError.
        """
        self._probe()
        asked = {name: value for name, value in query.items() if value is not None}
        if method == "GET" and wait:
            asked["wait"] = wait
        try:
            answer = self._client.request(method, path, json=body, params=asked, timeout=self._seconds + wait)
        except httpx.TimeoutException:
            raise UnreachableControllerError(
                self.where,
                f"waited {self._seconds + wait:g} s for the controller at {self.where} "
                f"to answer {method} {path}; see its log",
            ) from None
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.is_success:
            return answer.json()
        try:
            told = answer.json()
            message, kind = str(told["error"]), str(told.get("kind", ""))
        except (ValueError, KeyError, TypeError):
            message, kind = f"{method} {path} failed: {answer.status_code} {answer.reason_phrase}", ""
        raise RefusedError(self.where, answer.status_code, kind, message)

    def _probe(self) -> None:
        """Raise UnreachableControllerError if nobody listens: httpcore would leave a refused socket open."""
        limit = time.monotonic() + self._patience
        while not self._remote:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(self.where)
                    return
                except OSError as error:
                    if time.monotonic() >= limit:
                        raise self._unreachable(error) from error
            time.sleep(PROBE_PAUSE)

    def _unreachable(self, error: Exception) -> UnreachableControllerError:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return UnreachableControllerError(
            self.where,
            f"no controller answers at {self.where} ({why}); is its network up? ({command('net status')})",
        )

    def text(self, path: str) -> str:
        """Return the text of a page that is not JSON, as /metrics. Raises as `call`."""
        self._probe()
        try:
            answer = self._client.get(path)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not answer.is_success:
            raise RefusedError(self.where, answer.status_code, "", f"GET {path} failed: {answer.status_code}")
        return answer.text

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._client.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
