# SPDX-License-Identifier: Apache-2.0
"""What the controller raises: one family under `ControllerError`, each with the thing it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wire.errors import P4ReduceError


class ControllerError(P4ReduceError):
    """Root of the controller's errors."""


class SwitchClientError(ControllerError):
    """Something between us and one switch; `switch` is its name."""

    def __init__(self, switch: str, message: str) -> None:
        super().__init__(f"switch {switch}: {message}")
        self.switch = switch


class UnreachableError(SwitchClientError):
    """The switch's P4Runtime server does not answer at all, or went away."""


class TimedOutError(SwitchClientError):
    """The switch did not do in time what `waited_for` names."""

    def __init__(self, switch: str, waited_for: str, seconds: float) -> None:
        super().__init__(
            switch, f"waited {seconds:g} s for {waited_for}; see whether the switch runs, and its log"
        )
        self.waited_for = waited_for
        self.seconds = seconds


class NotPrimaryError(SwitchClientError):
    """Another controller is the switch's primary and alone may write; `primary` is its election id."""

    def __init__(self, switch: str, primary: tuple[int, int] | None, detail: str) -> None:
        known = f" (election id {primary[0]}:{primary[1]})" if primary else ""
        super().__init__(
            switch,
            f"another controller{known} is its primary ({detail}); stop that one, or take over from it",
        )
        self.primary = primary


class RpcFailedError(SwitchClientError):
    """The switch refused a whole request; `code` is gRPC's name of the reason."""

    def __init__(self, switch: str, what: str, code: str, detail: str) -> None:
        super().__init__(switch, f"refused {what}: {code}: {detail}")
        self.what = what
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class UpdateFailure:
    """One refused update of a batch."""

    index: int
    code: str
    """Canonical code by name, such as ALREADY_EXISTS."""
    message: str
    update: str
    """The update in words: kind, table, key, action."""

    def __str__(self) -> str:
        return f"#{self.index} {self.update}: {self.code}: {self.message}"


class WriteError(SwitchClientError):
    """Some updates of a batch were refused; all others were applied (CONTINUE_ON_ERROR)."""

    SHOWN = 5

    def __init__(self, switch: str, total: int, failures: Sequence[UpdateFailure]) -> None:
        shown = "; ".join(str(failure) for failure in failures[: self.SHOWN])
        more = f"; and {len(failures) - self.SHOWN} more" if len(failures) > self.SHOWN else ""
        super().__init__(switch, f"refused {len(failures)} of {total} updates: {shown}{more}")
        self.total = total
        self.failures = tuple(failures)


class P4InfoError(ControllerError):
    """The program has no such table, action, field or counter; `name` is what was asked for."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class FieldError(ControllerError):
    """A value that its field cannot hold; `field` is its full name."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field} = {value!r}: {reason}")
        self.field = field
        self.value = value


class PoolFullError(ControllerError):
    """No run of free slots is long enough; says what would fit."""

    def __init__(self, wanted: int, free: int, largest: int, holders: Sequence[tuple[str, int]]) -> None:
        held = ", ".join(f"{owner} holds {slots}" for owner, slots in holders) or "nobody holds any"
        fits = f"ask for at most {largest}" if largest else "remove a job first"
        super().__init__(
            f"{wanted} slots do not fit: {free} are free, {largest} of them in one run; {held}; {fits}"
        )
        self.wanted = wanted
        self.free = free
        self.largest = largest
        self.holders = tuple(holders)


class ExhaustedError(ControllerError):
    """All numbers of a kind are in use."""

    def __init__(self, what: str, count: int) -> None:
        super().__init__(f"all {count} {what} are in use; remove a job first")
        self.what = what


class BindAgainError(ControllerError):
    """A worker's UDP port that packets of a former life may still come from; the worker binds another one."""

    def __init__(self, host: str, ip: str, udp_port: int, reason: str) -> None:
        super().__init__(f"UDP port {udp_port} of {host} ({ip}) {reason}: bind again")
        self.host = host
        self.ip = ip
        self.udp_port = udp_port


class StateError(ControllerError):
    """The controller's state file cannot be read or written; `path` names it."""

    def __init__(self, path: object, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class JobError(ControllerError):
    """A job that cannot be set up, changed or found; `job` is its number."""

    def __init__(self, job: int, message: str) -> None:
        super().__init__(f"job {job}: {message}")
        self.job = job


class RollbackError(JobError):
    """A change of a job failed, and so did taking it back: the switch holds entries of it."""

    def __init__(self, job: int, cause: BaseException, rollback: Exception) -> None:
        super().__init__(
            job,
            f"{cause}; taking it back failed too: {rollback}. The switch still holds entries of this job: "
            "they admit nothing of another epoch; take the network down and up to be rid of them",
        )
        self.cause = cause
        self.rollback = rollback
