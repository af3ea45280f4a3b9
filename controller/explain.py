# SPDX-License-Identifier: Apache-2.0
"""Why a job does not progress, or that it does: one paragraph in plain words.

What the books alone tell comes first (workers that are not there, a change under way). Of a job that runs,
the switch is asked: its counters twice, PAUSE seconds apart, and, if no chunk was completed meanwhile, the
workers how they stand, and the switch for its slots.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from controller import looks
from controller.changes import FETCH_SECONDS, STOP_SECONDS
from controller.live import LiveJob
from controller.looks import SlotView
from controller.service import Controller
from controller.tally import JobCounts
from wire.verdicts import Verdict

PAUSE = 0.5
SLOTS = 512
"""Peeks for one explanation at most."""
REFUSED_SECONDS = 60.0
"""How long a refused packet may be past to be told of."""
ANSWER_SECONDS = 1.0
"""How long workers may take to say how they stand; a healthy one does at once."""


async def explain(controller: Controller, job: LiveJob) -> str:
    """Return the paragraph. Raises SwitchClientError when the switch fails while it is asked."""
    told, group = standing(controller, job), job.group
    if told is not None and not (group.draining is not None and group.running and group.sessions):
        return told
    draining = f"{told} " if told else ""
    before = await looks.count(job)
    await asyncio.sleep(PAUSE)
    after = await looks.count(job)
    completed = _completed(after) - _completed(before)
    if completed:
        return draining + progress(job, completed, looks.arrived(before, after))
    silent = await controller.sessions.ask(job, ANSWER_SECONDS)
    found = await looks.slots(job, SLOTS) if group.running else []
    if not group.running:  # something has begun meanwhile
        return standing(controller, job) or f"Job {job.name} has just begun epoch {group.epoch}."
    return draining + stuck(controller, job, found, looks.arrived(before, after), silent, time.monotonic())


def standing(controller: Controller, job: LiveJob) -> str | None:
    """Say what a job waits for as far as the books tell; None if it runs."""
    group, now = job.group, time.monotonic()
    begin = f"Job {job.name} "
    link = next((link for link in job.links if not link.in_line), None)
    if link is not None:
        why = f" ({link.complaint})" if link.complaint else ""
        return (
            f"{begin}runs on switch {link.name}, which is not reached now{why}. Its workers go on by "
            "themselves if the switch runs; no epoch begins until it is back, or others can sum for it."
        )
    change = group.change
    if group.draining is not None and (change is None or change.phase != "stop"):
        there = [_who(job, rank) for rank in sorted(group.sessions)]
        waits = f"waits for {_list(there)} to finish and leave" if there else "ends now"
        return f"{begin}is being drained after all-reduce {group.draining} and {waits}."
    if change is None:
        if group.installed:
            return None
        where = _list(job.tree.switches)
        return f"{begin}is about to begin epoch {group.epoch}: its entries are being written to {where}."
    why = f"is in a change of epoch, because {change.why}"
    if change.phase == "stop":
        late = [s.rank for s in group.seated() if s.status.stopped != change.id]
        if late:
            waited = f"for {now - change.since:.1f} s, of {STOP_SECONDS:g} s at most"
            return f"{begin}{why}. It waits for {_ranks(job, late)} to stop sending, {waited}."
    if change.phase == "fetch":
        late = [s.rank for s in group.seated() if s.sid in change.fetch and not s.status.fetched]
        if late:
            waited = f"for {now - change.since:.1f} s, of {FETCH_SECONDS:g} s at most"
            what = "to get the results that others have"
            return f"{begin}{why}. It waits for {_ranks(job, late)} {what}, {waited}."
    if group.absent:
        n = len(group.hosts)
        present = f"{n - len(group.absent)} of its {n} workers are there"
        because = "" if not group.epoch else f" It {why}."
        return f"{begin}waits for {_ranks(job, group.absent)} to join: {present}.{because}"
    late = [s.rank for s in group.seated() if s.status.epoch and s.status.failed != change.id]
    if change.members and late:
        return f"{begin}{why}. It waits for {_ranks(job, late)} to let the all-reduces under way fail."
    late = [
        s.rank
        for s in group.sessions.values()
        if not group.fresh(s) and s.status.udp_port in (0, s.refused_port)
    ]
    if late:
        return f"{begin}{why}. It waits for {_ranks(job, late)} to bind another UDP port."
    if job.homeless:
        return f"{begin}{why}; all workers are ready, and no epoch can begin: {job.homeless}."
    return f"{begin}{why}; all workers are ready, and the new epoch is about to begin."


def progress(job: LiveJob, completed: int, arrivals: Mapping[int, Mapping[str, int]]) -> str:
    """Say that a job runs, and what of its packets was not of use."""
    begun = max((s.status.begun for s in job.group.sessions.values()), default=0)
    text = f"Job {job.name} makes progress: {_count(completed, 'chunk')} completed in the last {PAUSE:g} s"
    text += f", in all-reduce {begun} as its workers last told." if begun else "."
    repeated = sum(
        _of(counts, Verdict.DUPLICATE, Verdict.REPLAYED, Verdict.STALE) for counts in arrivals.values()
    )
    packets = sum(sum(counts.values()) for counts in arrivals.values())
    if repeated:
        share = 100 * repeated / packets
        text += f" {share:.0f} % of its packets were sent again after a loss or a time-out."
    over = [rank for rank, counts in arrivals.items() if _of(counts, Verdict.OVER_RATE)]
    if over:
        rate = f" of {job.rate_bps / 1e6:g} Mbit/s" if job.rate_bps else ""
        text += f" Packets of {_ranks(job, over)} were refused: over the job's rate{rate}."
    return text


def stuck(
    controller: Controller,
    job: LiveJob,
    found: Sequence[SlotView],
    arrivals: Mapping[int, Mapping[str, int]],
    silent: Sequence[int],
    now: float,
) -> str:
    """Say why a job that runs completes nothing.

    `found` are its slots, `arrivals` packets by rank, `silent` the ranks whose workers do not answer.
    """
    text = f"Job {job.name} runs, and no chunk was completed in the last {PAUSE:g} s: "
    text += _cause(controller, job, found, arrivals, silent, now) + "."
    for rank in silent:
        session = job.group.sessions.get(rank)
        if session is not None:
            left = max(0.0, session.deadline - now)
            text += f" {_who(job, rank, 'Worker')} does not answer, and counts as lost in {left:.1f} s."
    return text


def _cause(
    controller: Controller,
    job: LiveJob,
    found: Sequence[SlotView],
    arrivals: Mapping[int, Mapping[str, int]],
    silent: Sequence[int],
    now: float,
) -> str:
    group, sessions = job.group, dict(sorted(job.group.sessions.items()))
    outside = [rank for rank, s in sessions.items() if not group.in_epoch(s)]
    if outside:
        return f"{_ranks(job, outside)} must still enter epoch {group.epoch}"
    waiting = {rank: s for rank, s in sessions.items() if s.status.first_missing < s.status.next_chunk}
    most = max((s.status.begun for s in sessions.values()), default=0)
    first = looks.frontier(job)
    partial = next((view for view in found if not view.done), None)
    if partial is not None:
        lacking = [
            f"the partial of switch {leaf} for chunk {partial.chunk} has not come to its parent for "
            f"{partial.age_seconds:.1f} s, though all below {leaf} have contributed"
            for leaf in partial.lacking
        ]
        return "; and ".join(
            [
                _not_contributed(controller, job, rank, partial, most, arrivals, rank in silent, now)
                for rank in partial.missing
            ]
            + lacking
        )
    complete = {view.chunk for view in found if view.done}
    deaf = {
        rank: s.status.first_missing
        for rank, s in waiting.items()
        if rank not in silent
        and first is not None
        and (s.status.first_missing < first or s.status.first_missing in complete)
    }
    if deaf:
        return "; and ".join(
            f"{_who(job, rank)} has not received the result of chunk {chunk} for "
            f"{now - sessions[rank].moved:.1f} s, though the switch has it"
            + _signs(controller, job, rank, arrivals, now)
            for rank, chunk in deaf.items()
        )
    behind = [rank for rank, s in sessions.items() if s.status.begun < most]
    if behind:
        ahead = [rank for rank in sessions if rank not in behind]
        least = min(sessions[rank].status.begun for rank in behind)
        only = f"only {least}" if least else "none"
        return f"{_ranks(job, ahead)} {_have(ahead)} begun all-reduce {most}, {_ranks(job, behind)} {only}"
    if waiting:
        since = max(now - s.moved for s in waiting.values())
        text = f"no contribution to chunk {first} has been admitted, for {since:.1f} s"
        return text + "".join(_signs(controller, job, rank, arrivals, now) for rank in waiting)
    if not most:
        return "no rank has begun an all-reduce yet"
    return f"it is idle, since all ranks have finished all-reduce {most} and none has begun a further one"


def _not_contributed(
    controller: Controller,
    job: LiveJob,
    rank: int,
    view: SlotView,
    most: int,
    arrivals: Mapping[int, Mapping[str, int]],
    silent: bool,
    now: float,
) -> str:
    session = job.group.sessions.get(rank)
    if session is None:
        return f"{_who(job, rank)} has gone, and its loss is about to be told to the others"
    # Who waits for this chunk does so at least since it told of that.
    waiting = [
        s for s in job.group.sessions.values() if view.chunk == s.status.first_missing < s.status.next_chunk
    ]
    since = max([view.age_seconds, *(now - s.moved for s in waiting)])
    text = f"{_who(job, rank)} has not contributed to chunk {view.chunk} for {since:.1f} s"
    if session.status.begun < most:
        text += f" (it has begun {session.status.begun or 'no'} all-reduces, others {most})"
    elif not silent and job.epoch is not None:
        lacks = session.status.first_missing
        if view.chunk - lacks >= job.epoch.window:  # the send rule
            text += f" (it must wait for the result of chunk {lacks}, which the switch has)"
    return text + _signs(controller, job, rank, arrivals, now)


def _signs(
    controller: Controller, job: LiveJob, rank: int, arrivals: Mapping[int, Mapping[str, int]], now: float
) -> str:
    """Tell what is known of one rank's packets: refused, arrived, faulted."""
    host = job.group.hosts[rank]
    record = controller.record
    text = ""
    ip = record.host(host).ip
    session = job.group.sessions.get(rank)
    moved = 0.0 if session is None else session.moved  # with packets that were admitted
    refused = [
        (at, refusal)
        for at, refusal in controller.refused.latest.values()
        if refusal.ip_src == ip and refusal.job == job.number and max(now - REFUSED_SECONDS, moved) < at
    ]
    if refused:
        at, refusal = max(refused, key=lambda each: each[0])
        text += f"; its last packet was refused {now - at:.1f} s ago: {looks.words(refusal.verdict)}"
        memberships = job.group.memberships
        own = memberships[rank].own_port if session is not None and rank < len(memberships) else None
        if own is not None and refusal.udp_src != own:
            text += f" (sent from UDP port {refusal.udp_src}, and its port of this epoch is {own})"
    came = arrivals.get(rank, {})
    if came:
        text += f"; of its packets came in the last {PAUSE:g} s: " + ", ".join(
            f"{number} {verdict}" for verdict, number in came.items()
        )
    elif not refused:
        text += f"; none of its packets came in the last {PAUSE:g} s"
    end = next(iter(record.peers(host).values()))
    port = end.port
    for (faulty, direction), shares in controller.store.faults(end.node).items():
        if faulty == port and (shares.drop or shares.corrupt):
            way = "from" if direction == "in" else "to"
            text += (
                f"; {100 * max(shares.drop, shares.corrupt):g} % of the packets {way} it are lost on purpose"
            )
    return text


def _completed(found: JobCounts) -> int:
    inputs = [*found.workers.values(), *found.leaves.values()]
    return sum(counts.get(Verdict.COMPLETED, (0, 0))[0] for counts in inputs)


def _of(counts: Mapping[str, int], *verdicts: Verdict) -> int:
    return sum(counts.get(looks.words(verdict), 0) for verdict in verdicts)


def _who(job: LiveJob, rank: int, word: str = "worker") -> str:
    return f"{word} {rank} on {job.group.hosts[rank]}"


def _ranks(job: LiveJob, ranks: Sequence[int]) -> str:
    return _list([_who(job, rank) for rank in ranks])


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
