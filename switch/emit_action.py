# SPDX-License-Identifier: Apache-2.0
"""Actions -> C functions `static void NAME(sw *s, sw_pkt *k, phv *h, const uint64_t *args)`."""

from __future__ import annotations

from collections.abc import Callable

from switch import ir
from switch.alike import DIFFERS, Alike
from switch.emit_code import PARAMETERS, Block, Layout, c_comment, limbs
from switch.emit_expr import Expressions
from switch.emit_known import Known
from switch.emit_locals import Locals
from switch.emit_roll import REPETITIONS, Roll, Rolled, Roller
from switch.emit_trace import Trace
from switch.primitives import PRIMITIVES, Context
from switch.primitives_arrays import read_register, write_register
from switch.widths import Bounds

# a run of register accesses at one index shares its bounds check from this many on
SHARED_RUN = 4
# bytes of a slot, all lanes, from which on the next packet's is fetched before its time
LARGE_SLOT = 256


def _same_place(x: ir.Expr, y: ir.Expr) -> bool:
    """Whether two index expressions are the same field, argument or constant."""
    if isinstance(x, ir.FieldRef) and isinstance(y, ir.FieldRef):
        return x.index == y.index and x.header.header is not None and x.header.header is y.header.header
    if isinstance(x, ir.Arg) and isinstance(y, ir.Arg):
        return x.index == y.index
    return isinstance(x, ir.Const) and isinstance(y, ir.Const) and x.value == y.value


def _access(call: ir.Call) -> tuple[ir.RegisterArray, ir.Expr] | None:
    """Array and index of a register access."""
    if call.op == "register_read":
        array, index = call.args[1], call.args[2]
    elif call.op == "register_write":
        array, index = call.args[0], call.args[1]
    else:
        return None
    assert isinstance(array, ir.RegisterArray)
    assert isinstance(index, ir.Expr)
    return array, index


def _written(call: ir.Call) -> ir.FieldRef | None:
    """The field that an assign or register_read writes."""
    target = call.args[0] if call.op in ("assign", "register_read") else None
    return target if isinstance(target, ir.FieldRef) else None


def shared_run(body: tuple[ir.Call, ...], start: int, stops: set[int]) -> int:
    """End of the run of assigns and register accesses from `start` that use one index and array size.

    Such a run (a slot's values, read, added and written back) is emitted with one bounds check, so that the
    compiler sees straight-line loads and stores. The index must not be written inside it.
    """
    first = _access(body[start])
    if first is None or isinstance(first[1], ir.Binary):
        return start
    array, index = first
    end = start
    for i in range(start, len(body)):
        call = body[i]
        if i in stops or call.op not in ("assign", "register_read", "register_write"):
            break
        access = _access(call)
        if access is not None and (access[0].size != array.size or not _same_place(access[1], index)):
            break
        target = _written(call)
        if target is not None and (target.header.header is None or _same_place(target, index)):
            break
        if access is not None:
            end = i + 1
    return end


def assigns(body: tuple[ir.Call, ...], start: int, stops: set[int]) -> int:
    """End of the run of assigns from `start`."""
    end = start
    while end < len(body) and body[end].op == "assign" and (end == start or end not in stops):
        end += 1
    return end


class Actions:
    """Emits actions, and the primitives of parser and deparser."""

    def __init__(
        self,
        layout: Layout,
        bounds: Bounds,
        calculations: dict[str, str],
        trace: Trace,
        alike: Alike,
        known: Known,
        local: Locals,
    ) -> None:
        self.local = local
        self.layout = layout
        self.bounds = bounds
        self.calculations = calculations
        self.trace = trace
        self.alike = alike
        self.known = known
        self._roller = Roller(layout)

    def context(self) -> Context:
        """A fresh context for one function."""
        return Context(Expressions(self.layout, self.bounds), self.calculation)

    def calculation(self, calculation: ir.Calculation) -> str:
        """C call of a calculation."""
        return f"{self.calculations[calculation.name]}(s, k, h{self.local.argument(calculation)})"

    def call(self, c: Context, b: Block, call: ir.Call) -> None:
        """One primitive."""
        c.expressions.source = call.source
        target = _written(call)
        if call.op == "assign" and target is not None and self.known.guards(target):
            assert isinstance(call.args[1], ir.Expr)
            self.known.assign(b, c.expressions, target, call.args[1])
            return
        with self.known.changes(b, (call,)):
            PRIMITIVES[call.op].emit(c, b, call.args)

    def action(self, action: ir.Action, name: str) -> str:
        """The C function of one action."""
        c = self.context()
        c.expressions.args = self.layout.arg_offsets(action)
        labels = {t.value for call in action.body for t in call.args[-1:] if call.op.startswith("_jump")
                  if isinstance(t, ir.Const)}  # fmt: skip
        b = Block()
        if self.alike.action(action):
            b.line(DIFFERS)
        i = 0
        while i < len(action.body):
            if i in labels:
                b.label(f"L{i}")
            end = shared_run(action.body, i, labels - {i})
            if sum(_access(call) is not None for call in action.body[i:end]) >= SHARED_RUN:
                self._run(c, b, action.body[i:end])
                i = end
                continue
            end = assigns(action.body, i, labels)
            if end - i >= REPETITIONS:
                self._comment(b, c_comment(str(action.body[i].source)))
                self._rolled(c.expressions, b, action.body[i:end], "")
                i = end
                continue
            c.position = i
            note = c_comment(str(action.body[i].source))
            self._comment(b, note)
            if action.body[i].op in ("mark_to_drop", "drop"):
                self.trace.event(b, "MARK", action.id, i)
            self.call(c, b, action.body[i])
            i += 1
        if len(action.body) in labels:
            b.label(f"L{len(action.body)}")
        head = f"/* {c_comment(action.name)} {c_comment(str(action.source))} */\n" if action.name else ""
        unused = "(void)s; (void)k; (void)h; (void)args;"
        return (
            f"{head}{self.local.head(action)} void {name}"
            f"({PARAMETERS}, const uint64_t *args{self.local.parameter(action)}) {{\n"
            f"    {unused}\n{b.text() if b.lines else ''}}}\n"
        )

    def _comment(self, b: Block, note: str) -> None:
        if note:
            b.line(f"/* {note} */")

    def _run(self, c: Context, b: Block, calls: tuple[ir.Call, ...]) -> None:
        """A run found by `shared_run`: all of it where the index is in range, else only what is no access."""
        x = c.expressions
        found = _access(calls[0])
        assert found is not None
        array, index = found
        x.source = calls[0].source
        self._comment(b, c_comment(str(calls[0].source)))
        with b.nest(""):
            at = b.temp()
            b.line(f"uint64_t {at} = {x.saturated(b, index)};")
            with b.nest(f"if (SW_LIKELY({at} < {array.size}))"):
                self._rolled(_Based(x, self._bases(b, calls, at)), b, calls, at)
            rest = tuple(call for call in calls if call.op == "assign")
            if rest:
                with b.nest("else"):
                    self._rolled(x, b, rest, at)

    def _rolled(self, x: Expressions, b: Block, calls: tuple[ir.Call, ...], at: str) -> None:
        """Assigns, and register accesses at the valid index `at`: what repeats as a loop."""

        def emit(x: Expressions, b: Block, call: ir.Call) -> None:
            x.source = call.source
            if call.op == "register_read":
                read_register(x, b, call.args[0], call.args[1], at)  # type: ignore[arg-type]
            elif call.op == "register_write":
                write_register(x, b, call.args[0], at, call.args[2])  # type: ignore[arg-type]
            else:
                x.store(b, call.args[0], call.args[1])  # type: ignore[arg-type]

        with self.known.changes(b, calls):
            self._parts(x, b, calls, at, emit)

    def _parts(
        self,
        x: Expressions,
        b: Block,
        calls: tuple[ir.Call, ...],
        at: str,
        emit: Callable[[Expressions, Block, ir.Call], None],
    ) -> None:
        for part in self._roller.split(calls):
            if isinstance(part, Roll):
                first = calls[part.start : part.start + part.period]
                with b.nest(""):
                    leaves = self._roller.leaves(first)
                    Rolled(x, lambda array: x.register(b, array, at)).emit(b, first, leaves, part, emit)
            else:
                emit(x, b, part)

    def _bases(self, b: Block, calls: tuple[ir.Call, ...], at: str) -> dict[int, str]:
        """One restrict pointer per register group: to the slot whose lanes the run touches."""
        bases: dict[int, str] = {}
        for call in calls:
            access = _access(call)
            if access is None:
                continue
            group = self.layout.register_place[access[0].name][0]
            if group not in bases:
                _, element, arrays = self.layout.groups[group]
                kind = "uint64_t" if element > 8 else f"uint{8 * element}_t"
                words = element // 8 if element > 8 else 1
                bases[group] = b.temp()
                b.line(
                    f"{kind} *restrict {bases[group]} = ({kind} *)s->groups[{group}] + "
                    f"(size_t){at} * {len(arrays) * words};"
                )
                if len(arrays) * element >= LARGE_SLOT:
                    b.line(f"sw_ahead(s, {group}, {bases[group]}, {len(arrays) * element});")
        return bases


class _Based(Expressions):
    """Expressions whose registers are reached through a slot pointer."""

    def __init__(self, base: Expressions, bases: dict[int, str]) -> None:
        super().__init__(base.layout, base.bounds, base.source)
        self.args = base.args
        self._bases = bases

    def register(self, b: Block, array: ir.RegisterArray, index: str) -> str:
        group, lane = self.layout.register_place[array.name]
        if array.width > 64:
            return f"({self._bases[group]} + {lane * limbs(array.width)})"
        return f"{self._bases[group]}[{lane}]"
