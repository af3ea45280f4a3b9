# SPDX-License-Identifier: Apache-2.0
"""`trace explain`: what limited a run, with the numbers that say so and the filter that shows the packets.

A chunk lives, for a member, from its first contribution to its first result, at the end of the link that was
captured. It waits for the other members until the last contribution (`wait`), in the switch until the result
leaves (`switch`, where the switch's end was captured), and is on its way for the rest (`way`). Where a member
sends with as many chunks under way as it ever has, its window holds it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wire.constants import frame_bytes

from .chunk_life import Life, complete
from .errors import TraceFileError
from .files import expand, merged, readable
from .inside import dropped
from .lives import FAR, OWN, Collector, Ints, Lives
from .members import load
from .verify_columns import NEVER
from .verify_findings import Findings
from .verify_infer import infer
from .verify_tree import trees

GAP = 1_000_000
"""ns without a packet of a job that are a gap at least, and"""
GAP_TIMES = 20
"""so many times the usual distance."""
MOST_GAPS = 5
"""That are told."""
OFTEN = 0.5
"""Share of a time or of chunks from which it counts as what limits."""
UNFAIR = 1.5
"""Times that one job got what another did."""
BUSY = 0.8
"""Share of a link's rate from which it counts as what limits."""
SOME = 0.25
"""Share of a chunk's life that may limit where the switch is busy, or where packets queue on the way."""
QUEUED = 2.0
"""Times the quickest way, from which packets must have queued."""


@dataclass
class Finding:
    """One thing that was found: `kind` is what, `limits` whether it is what limited the job."""

    kind: str
    job: int
    text: str
    numbers: dict[str, Any]
    show: str
    """Options of `trace show` that show the packets."""
    limits: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return vars(self).copy()


@dataclass
class Explanation:
    """Findings, what limited each job first; and what was assumed."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failure: TraceFileError | None = None
    """Of a file that could not be read to its end: what was readable is in here."""
    names: dict[int, str] = field(default_factory=dict)
    """Of jobs by number, where they are told."""


def explain(paths: Sequence[Path], format: str = "p4reduce") -> Explanation:
    """Say what limited the jobs in captures (files or folders), as far as they can be read.

    Raises MembersError, and TraceFileError where a path is no capture file.
    """
    files = expand(paths)
    epochs_told, guessed = load(paths), Findings()
    told = trees(epochs_told)
    if not told:
        told = infer(merged(files, format=format), guessed)
    collector = Collector(told)
    found = Explanation(notes=guessed.notes, names={each.job: each.job_name for each in epochs_told})
    jobs: dict[int, list[Lives]] = {}
    errors: list[TraceFileError] = []
    for lives in collector.collect(readable(merged(files, format=format), errors)):
        jobs.setdefault(lives.tree.job, []).append(lives)
    found.failure = errors[0] if errors else None
    for job, epochs in sorted(jobs.items()):
        found.findings += [finding for finding in explain_job(job, epochs) if finding is not None]
    found.findings += _unfair(jobs)
    found.findings.sort(key=lambda finding: not finding.limits)
    return found


def explain_job(job: int, epochs: Sequence[Lives]) -> list[Finding | None]:
    """Return what was found of one job's epochs."""
    life = Life(epochs)
    gaps = _gaps(job, epochs)
    stragglers = [finding for each in epochs for finding in _stragglers(job, each, life)]
    losses = _losses(job, epochs, life)
    # Captures show a packet once it has left a shaper's queue: what links are shaped to must be told.
    shaped = [_Shaped(s.link or s.name, s.mbit) for each in epochs for s in each.tree.seats if s.mbit]
    narrow = min(shaped, key=lambda each: each.mbit, default=None)
    return [_limit(job, life, gaps, stragglers, _lossy(losses), narrow), *stragglers, *losses, gaps]


class _Shaped(NamedTuple):
    """A member's link."""

    link: str
    mbit: float


def _limit(
    job: int,
    life: Life,
    gaps: Finding | None,
    stragglers: Sequence[Finding],
    lossy: bool,
    narrow: _Shaped | None,
) -> Finding | None:
    """Say what limited a job, by where its chunks' time went; `narrow` is its slowest shaped link."""
    if not len(life.whole):
        return None
    wait, switch = life.share(life.wait), life.share(life.switch)
    way = max(0.0, 1 - wait - switch)
    quickest = float(np.percentile(life.rest, 5))
    queued = float(np.median(life.rest)) / quickest if quickest > 0 else 1.0
    idle, stalled = (
        gaps.numbers[name] if gaps is not None else 0.0 for name in ("idle_share", "stalled_share")
    )
    active = life.seconds * max(0.0, 1 - idle - stalled)
    busy = min(1.0, life.busy / active) if active else 0.0
    rate = life.bits / active / 1e6 if active else 0.0
    # Of all the time: between a shaper's bursts nothing is seen to be asked for.
    used = life.bits / 1e6 / life.seconds / narrow.mbit if narrow is not None and life.seconds else 0.0
    numbers = {
        "chunk_life_ms": round(life.median / 1e6, 3),
        "wait_share": round(wait, 3),
        "switch_share": round(switch, 3) if len(life.switch) else None,
        "switch_busy": round(busy, 3) if len(life.switch) else None,
        "way_share": round(way, 3) if life.own else None,
        "mbit_s": round(rate, 3),
        "queued": round(queued, 2),
        "most_under_way": life.most,
        "window": life.window or None,
        "full_share": round(life.full, 3),
        "idle_share": round(idle, 3),
        "stalled_share": round(stalled, 3),
        "seconds": round(life.seconds, 6),
    }
    told = (
        f"a chunk lives {life.median / 1e6:.3f} ms (median): {wait:.0%} waiting for other members"
        + (" (none of them is a straggler), " if wait >= OFTEN and not stragglers else ", ")
        + (f"{switch:.0%} in the switch" if len(life.switch) else f"{way:.0%} on its way and in the switch")
        + (f", {way:.0%} on its way" if life.own and len(life.switch) else "")
        + f"; while packets move, a worker sends {rate:.2f} Mbit/s"
    )
    if narrow is not None and used >= BUSY:
        what, why = (
            "link",
            f"{narrow.link} is shaped to {narrow.mbit:g} Mbit/s, and {used:.0%} used all the time",
        )
    elif idle >= OFTEN:
        what, why = "idle", f"nothing was asked of the network in {idle:.0%} of the time"
    elif stalled >= OFTEN and lossy:
        what, why = "loss", f"nothing moved in {stalled:.0%} of the time until something was sent again"
    elif stalled >= OFTEN and wait >= OFTEN and not stragglers:
        what, why = "members", f"nothing moved in {stalled:.0%} of the time until the last of them had sent"
    elif wait >= OFTEN and stragglers:
        what, why = "stragglers", "its members wait for the last of them"
    elif busy >= OFTEN and switch >= SOME:
        what, why = "switch", f"it had chunks to give results of in {busy:.0%} of the time"
    elif queued >= QUEUED and way >= SOME and life.own:
        what, why = "link", f"packets queue on the way: {queued:.1f} times the quickest (5th percentile)"
    elif life.full >= OFTEN and life.most > 1:
        held = "window W" if life.most >= life.window > 0 else "congestion window"
        what = "window"
        why = f"the {held} was full, {life.most} chunks, after {life.full:.0%} of a member's sends"
    else:
        what, why = "senders", f"at most {life.most} chunks were under way, and seldom as many"
    if what in ("window", "senders") and not life.own:
        what = "members"
        why = (
            f"the switch had nothing to do in {1 - busy:.0%} of the time, and at most {life.most} chunks at "
            "once: the members, their windows or their links (only captures at the hosts tell which)"
        )
    return Finding(
        "limit", job, f"limited by {what}: {why}; {told}", numbers | {"by": what}, f"--job {job}", True
    )


def _stragglers(job: int, lives: Lives, life: Life) -> list[Finding]:
    """Say who was last at a switch, how often, and by how much."""
    found = []
    for k, seats in enumerate(lives.tree.below):
        if len(seats) < 2:
            continue
        ends = [lives.end(int(seat)) for seat in seats]
        sent = lives.first_up[:, seats, ends]
        whole = np.flatnonzero((sent != NEVER).all(axis=1))
        if not len(whole):
            continue
        times = np.sort(sent[whole], axis=1)
        last, lag = sent[whole].argmax(axis=1), times[:, -1] - times[:, -2]
        for index, seat in enumerate(seats.tolist()):
            mine = last == index
            behind = float(np.median(lag[mine])) if mine.any() else 0.0
            share = float(mine.mean())
            if share < max(OFTEN, 1.5 / len(seats)) or behind < 0.1 * life.median:
                continue
            name = lives.tree.seats[seat].name
            worst = whole[mine][np.argsort(lag[mine])[-1]]
            found.append(
                Finding(
                    "straggler",
                    job,
                    f"{name} was the last of {len(seats)} to contribute to {share:.0%} of {len(whole)} "
                    f"chunks, by {behind / 1e6:.3f} ms (median; at most {lag[mine].max() / 1e6:.3f} ms)",
                    {
                        "member": name,
                        "epoch": lives.tree.epoch or None,
                        "switch": k,
                        "chunks": len(whole),
                        "last": int(mine.sum()),
                        "share": round(share, 3),
                        "behind_ms": round(behind / 1e6, 3),
                        "most_behind_ms": round(float(lag[mine].max()) / 1e6, 3),
                    },
                    f"--job {job} --chunk {(lives.base + int(worst)) % 2**32}",
                )
            )
    return found


_COUNTED = (
    *("up", "down", "dropped_up", "dropped_down", "lost", "lost_after", "waiting", "spoilt", "retransmitted"),
)


def _losses(job: int, epochs: Sequence[Lives], life: Life) -> list[Finding]:
    """Say where packets were lost, how many, and how long it took to notice."""
    found: dict[str, dict[str, Any]] = {}
    for lives in epochs:
        again, inside = lives.retransmitted(), dropped(lives)
        for s, seat in enumerate(lives.tree.seats):
            numbers = found.setdefault(
                seat.name,
                dict.fromkeys(_COUNTED, 0)
                | {"both": True, "inside": True, "link": seat.link, "recovery": []},
            )
            numbers["inside"] &= inside is not None
            if inside is not None:
                numbers["dropped_up"] += int(inside[s, 0])
                numbers["dropped_down"] += int(inside[s, 1])
            numbers["both"] &= lives.both(s)
            if lives.both(s):
                numbers["up"] += int((lives.ups[:, s, OWN] - lives.ups[:, s, FAR]).sum())
                numbers["down"] += int((lives.downs[:, s, FAR] - lives.downs[:, s, OWN]).sum())
            numbers["spoilt"] += int(lives.spoilt[s].sum())
            end = lives.end(s)
            mine = again[:, again[1] == s]
            chunk, time = mine[0], mine[3]
            got = lives.first_down[chunk, s, end]
            at = complete(lives, lives.tree.below[seat.switch], end)[chunk]
            after, waiting = got <= time, at > time
            numbers["retransmitted"] += len(time)
            numbers["lost_after"] += int(after.sum())
            numbers["waiting"] += int((waiting & ~after).sum())
            lost = ~after & ~waiting
            numbers["lost"] += int(lost.sum())
            late = np.unique(chunk[lost])
            late = late[lives.first_down[late, s, end] != NEVER]
            numbers["recovery"] += (lives.first_down[late, s, end] - lives.first_up[late, s, end]).tolist()
            numbers["recovery"] += (time - got)[after].tolist() if end == FAR else []
    return [_loss(job, name, numbers, life) for name, numbers in found.items() if _any_loss(numbers)]


def _lossy(losses: Sequence[Finding]) -> bool:
    """Say whether more was sent again because it was lost than because a time-out came too early."""
    real, early = (
        sum(finding.numbers.get(name, 0) for finding in losses for name in names)
        for names in (("up", "down", "spoilt", "lost"), ("waiting",))
    )
    return bool(real > early)


def _any_loss(numbers: dict[str, Any]) -> bool:
    return any(numbers[name] for name in ("up", "down", "spoilt", "retransmitted"))


def _loss(job: int, name: str, numbers: dict[str, Any], life: Life) -> Finding:
    recovery = np.array(numbers.pop("recovery"), np.float64) / 1e6
    both, link = numbers.pop("both"), numbers["link"] or "its link"
    told = []
    if both:
        told += [f"{numbers['up']} packets were lost on {link} on the way up, {numbers['down']} down"]
    else:
        del numbers["up"], numbers["down"]
    if not numbers.pop("inside"):
        del numbers["dropped_up"], numbers["dropped_down"]
    elif numbers["dropped_up"] or numbers["dropped_down"]:
        told.append(
            f"the switch dropped at least {numbers['dropped_up']} of its contributions and "
            f"{numbers['dropped_down']} results to it (its fault table, or a full queue)"
        )
    if numbers["spoilt"]:
        told.append(f"{numbers['spoilt']} were spoilt (wrong checksum)")
    told.append(
        f"{numbers['retransmitted']} contributions were sent again: {numbers['lost']} where all had "
        f"contributed and no result came, {numbers['lost_after']} after a result was seen, "
        f"{numbers['waiting']} while others were missing"
    )
    if len(recovery):
        numbers["recovery_ms"] = round(float(np.median(recovery)), 3)
        numbers["most_recovery_ms"] = round(float(recovery.max()), 3)
        told.append(
            f"it took {np.median(recovery):.3f} ms (median; at most {recovery.max():.3f}), where a chunk "
            f"usually lives {life.median / 1e6:.3f}"
        )
    numbers["member"] = name
    return Finding(
        "loss", job, f"{name}: {'; '.join(told)}", numbers, f"--job {job} --worker {name} --only retransmits"
    )


def _gaps(job: int, epochs: Sequence[Lives]) -> Finding | None:
    """Say when nothing of a job was on its links, and whether it waited for something."""
    times = np.concatenate(
        [each.reshape(-1) for lives in epochs for each in (lives.first_up, lives.first_down)]
    )
    times = np.concatenate([times, *(lives.retransmitted()[3] for lives in epochs)])
    times = np.sort(times[times != NEVER])
    apart = np.diff(times)
    if not len(apart) or times[-1] == times[0]:
        return None
    gaps = np.flatnonzero(apart > max(GAP, GAP_TIMES * float(np.median(apart))))
    if not len(gaps):
        return None
    waiting = _under_way(epochs, times[gaps])
    length = apart[gaps]
    idle, stalled = float(length[waiting == 0].sum()), float(length[waiting > 0].sum())
    run = float(times[-1] - times[0])
    longest = np.argsort(length)[::-1][:MOST_GAPS]
    told = "; ".join(
        f"{length[i] / 1e6:.3f} ms at {(times[gaps[i]] - times[0]) / 1e9:.6f} s"
        + (f" with {waiting[i]} chunks under way" if waiting[i] else "")
        for i in longest.tolist()
    )
    return Finding(
        "gaps",
        job,
        f"{len(gaps)} gaps without a packet: {idle / run:.0%} of the time nothing was asked for, "
        f"{stalled / run:.0%} it waited for chunks under way; the longest: {told}",
        {
            "gaps": len(gaps),
            "idle_share": round(idle / run, 3),
            "stalled_share": round(stalled / run, 3),
            "longest_ms": [round(float(length[i]) / 1e6, 3) for i in longest.tolist()],
            "at_s": [round(float(times[gaps[i]] - times[0]) / 1e9, 6) for i in longest.tolist()],
            "under_way": [int(waiting[i]) for i in longest.tolist()],
        },
        f"--job {job}",
    )


def _under_way(epochs: Sequence[Lives], times: Ints) -> Ints:
    """Return how many chunks were, at each time: from the first sending to the last result."""
    many = np.zeros(len(times), np.int64)
    for lives in epochs:
        seats = np.arange(len(lives.tree.seats))
        ends = [lives.end(seat) for seat in seats.tolist()]
        sent, got = lives.first_up[:, seats, ends], lives.first_down[:, seats, ends]
        # What never got a result was given up, or its epoch ended.
        whole = (sent != NEVER).any(axis=1) & (got != NEVER).any(axis=1)
        begins, over = sent[whole].min(axis=1), np.where(got == NEVER, 0, got)[whole].max(axis=1)
        for bound, sign in ((begins, 1), (over, -1)):
            many += sign * np.searchsorted(np.sort(bound), times, side="right")
    return many


def _unfair(jobs: dict[int, list[Lives]]) -> list[Finding]:
    """Say where jobs that shared a switch at a time got unequal shares of it."""
    spans = {}
    for job, epochs in jobs.items():
        times = np.concatenate([lives.first_up.reshape(-1) for lives in epochs])
        times = np.sort(times[times != NEVER])
        if len(times):
            switches = {switch for lives in epochs for switch in lives.tree.switches}
            seats = len(epochs[-1].tree.seats)
            spans[job] = times, switches, frame_bytes(epochs[-1].tree.elements), seats
    found = []
    for job in spans:
        for other in spans:
            (times, switches, size, n), (others, places, other_size, m) = spans[job], spans[other]
            begin, end = max(times[0], others[0]), min(times[-1], others[-1])
            if other <= job or not switches & places or end <= begin:
                continue
            seconds = float(end - begin) / 1e9
            mine, its = (
                float(((when >= begin) & (when <= end)).sum()) * 8 * bytes_ / members / seconds
                for when, bytes_, members in ((times, size, n), (others, other_size, m))
            )
            low, high = sorted(((mine, job), (its, other)))
            if low[0] * UNFAIR > high[0]:
                continue
            text = (
                f"job {high[1]} got {high[0] / 1e6:.2f} Mbit/s a member where job {low[1]} got "
                f"{low[0] / 1e6:.2f}, in the {seconds:.3f} s that both ran at one switch"
            )
            numbers = {"mbit_s": {job: round(mine / 1e6, 3), other: round(its / 1e6, 3)}, "seconds": seconds}
            found.append(Finding("unfair", low[1], text, numbers, f"--job {low[1]}"))
    return found
