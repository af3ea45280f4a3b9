# SPDX-License-Identifier: Apache-2.0
"""`ir.Program` -> one C file that is compiled together with switch/runtime."""

from __future__ import annotations

from switch import ir
from switch.alike import Alike
from switch.emit_action import Actions
from switch.emit_calc import Calculations
from switch.emit_code import Block, Layout, Namer, c_comment, limbs
from switch.emit_control import Controls
from switch.emit_expr import Expressions, Val, literal
from switch.emit_known import Known
from switch.emit_locals import Locals
from switch.emit_parser import Parsers
from switch.emit_trace import Trace
from switch.emit_writes import Writes
from switch.errors import LoadError
from switch.widths import Bounds

# what the v1model target reads and writes, and where it looks for it: an alias, then the header itself
TARGET_FIELDS = {
    "ingress_port": "standard_metadata",
    "egress_spec": "standard_metadata",
    "egress_port": "standard_metadata",
    "instance_type": "standard_metadata",
    "packet_length": "standard_metadata",
    "parser_error": "standard_metadata",
    "checksum_error": "standard_metadata",
    "ingress_global_timestamp": "intrinsic_metadata",
    "egress_global_timestamp": "intrinsic_metadata",
    "mcast_grp": "intrinsic_metadata",
    "egress_rid": "intrinsic_metadata",
    "priority": "intrinsic_metadata",
    "enq_timestamp": "queueing_metadata",
    "enq_qdepth": "queueing_metadata",
    "deq_timedelta": "queueing_metadata",
    "deq_qdepth": "queueing_metadata",
}


def emit_program(program: ir.Program, *, trace: bool = False) -> str:
    """The whole C file, with `trace` one that reports what it does.

    Raises `LoadError` for an expression that this switch cannot compute.
    """
    try:
        return _program(program, Trace(program, on=trace))
    except RecursionError as e:
        raise LoadError(
            "an expression", "it is nested too deeply: use variables for its parts", program.name
        ) from e


def _program(program: ir.Program, trace: Trace) -> str:
    targets = _target_headers(program)
    local, writes = Locals(program, targets), Writes(program, targets)
    layout, bounds, alike = Layout(program, local, writes.headers(local)), Bounds(), Alike(program)
    known = Known(program, layout, targets)
    namer = Namer()
    calculations = {name: "calc_" + namer("calc " + name) for name in program.calculations}
    action_names = {a.id: namer(f"act {a.name}") for a in program.actions.values()}
    actions = Actions(layout, bounds, calculations, trace, alike, known, local)
    calcs = Calculations(program, layout, bounds, known, local)
    parsers = Parsers(program, layout, bounds, actions, trace, alike, known)
    controls = Controls(
        program, layout, bounds, action_names, actions.calculation, trace, alike, known, local
    )
    parts = [
        "/* SPDX-License-Identifier: Apache-2.0 */\n"
        f"/* Made by switch/emit.py from {c_comment(program.name) or 'a v1model program'}. */\n"
        f'{"#define SW_TRACED" if trace.on else ""}\n#include "runtime.h"\n',
        layout.declarations(),
        _target_fields(program, layout, bounds),
        *(calcs.calculation(c, calculations[n]) for n, c in program.calculations.items()),
        *(actions.action(a, action_names[a.id]) for a in _called(program)),
        parsers.parser(),
        controls.pipeline(program.ingress),
        controls.pipeline(program.egress),
        parsers.deparser(),
        _reset_metadata(program, layout),
        _before_parsing(layout),
        writes.function(layout, known.version),
        _copy_list(program, layout, bounds),
        _digest(program, layout, bounds),
        '#include "v1model.h"\n',
        controls.descriptions(),
        parsers.value_sets(),
        _description(
            program,
            layout,
            parsers.header_bytes(),
            calcs.scratch_bytes(),
            known.count,
            alike.possible and not trace.on,
        ),
    ]
    return "\n".join(parts)


def _called(program: ir.Program) -> list[ir.Action]:
    """Actions that some table or call can run, and that do something."""
    ids = set()
    for p in (program.ingress, program.egress):
        for node in p.nodes.values():
            if isinstance(node, ir.Table):
                ids |= {a.id for a in node.actions}
                if node.default_action is not None:
                    ids.add(node.default_action.id)
            elif isinstance(node, ir.Invoke):
                ids.add(node.action.id)
    invoked = {n.action.id for p in (program.ingress, program.egress) for n in p.nodes.values()
               if isinstance(n, ir.Invoke)}  # fmt: skip
    return [a for a in program.actions.values() if a.id in ids and (a.body or a.id in invoked)]


def _target_fields(program: ir.Program, layout: Layout, bounds: Bounds) -> str:
    out = []
    for name, home in TARGET_FIELDS.items():
        ref = _find(program, home, name) or _find(program, "standard_metadata", name)
        head = f"static inline SW_UNUSED {{}} sm_{{}}_{name}(const phv *h"
        if ref is None:
            out.append(
                f"static inline SW_UNUSED uint64_t sm_get_{name}(const phv *h) {{ (void)h; return 0; }}"
            )
            out.append(
                f"static inline SW_UNUSED void sm_set_{name}(phv *h, uint64_t v) {{ (void)h; (void)v; }}"
            )
            continue
        x, b = Expressions(layout, bounds), Block()
        x.store_val(b, x.field(b, ref), ref.field.width, Val("v", 64, 64))
        value = x.exact(Block(), ref)
        out.append(f"{head.format('uint64_t', 'get')}) {{ return {value.code}; }}")
        body = " ".join(b.lines).strip()
        out.append(f"static inline SW_UNUSED void sm_set_{name}(phv *h, uint64_t v) {{ {body} }}")
    return "\n".join(out) + "\n"


def _target_headers(program: ir.Program) -> set[str]:
    """Names of the headers that hold the target's fields."""
    refs = [
        _find(program, home, name) or _find(program, "standard_metadata", name)
        for name, home in TARGET_FIELDS.items()
    ]
    return {r.header.header.name for r in refs if r is not None and r.header.header is not None}


def _find(program: ir.Program, header: str, name: str) -> ir.FieldRef | None:
    where = program.aliases.get(f"{header}.{name}", (header, name))
    h = program.headers.get(where[0])
    if h is None or where[1] not in (f.name for f in h.type.fields):
        return None
    ref = ir.FieldRef(ir.HeaderRef(header=h), h.type.index(where[1]))
    f = ref.field
    return ref if f.width <= 64 and not f.signed and not f.varbit else None


def _reset_metadata(program: ir.Program, layout: Layout) -> str:
    lines = ["static void p4_reset_metadata(phv *h) {"]
    for h in program.headers.values():
        if h.metadata:
            lines.append(f"    memset(&h->{layout.places[h.id]}, 0, sizeof h->{layout.places[h.id]});")
    return "\n".join([*lines, "}"]) + "\n"


def _before_parsing(layout: Layout) -> str:
    lines = [f"    h->{place}.valid = 0;" for place in layout.late]
    return "\n".join(["static void p4_no_late_headers(phv *h) {", "    (void)h;", *lines, "}"]) + "\n"


def _copy_list(program: ir.Program, layout: Layout, bounds: Bounds) -> str:
    """Field lists of clone, resubmit, recirculate: each field goes from one phv to the other."""
    b = Block()
    b.line("(void)to; (void)from;")
    with b.nest("switch (list)"):
        for f in program.field_lists.values():
            refs = [e for e in f.elements if isinstance(e, ir.FieldRef)]
            if not refs:
                continue
            b.line(f"case {f.id}: /* {c_comment(f.name)} */")
            for ref in refs:
                place = Expressions(layout, bounds).field(Block(), ref).removeprefix("h->")
                if ref.field.width > 64:
                    b.line(f"    memcpy(to->{place}, from->{place}, sizeof to->{place});")
                else:
                    b.line(f"    to->{place} = from->{place};")
            b.line("    break;")
        b.line("default: break;")
    return f"static void p4_copy_list(uint32_t list, phv *to, const phv *from) {{\n{b.text()}}}\n"


def _digest(program: ir.Program, layout: Layout, bounds: Bounds) -> str:
    """Digest samples: each value in as many 64-bit words as it needs."""
    b = Block()
    b.line("(void)s; (void)h;")
    with b.nest("switch (list)"):
        for d in program.digests.values():
            words: list[str] = []
            for e in d.elements:
                if isinstance(e, ir.Constant):
                    words += [literal(e.value >> 64 * i, 64) for i in range(limbs(e.width))]
                    continue
                place = Expressions(layout, bounds).field(Block(), e)
                n = limbs(e.field.width)
                words += [f"{place}[{i}]" for i in range(n)] if e.field.width > 64 else [f"(uint64_t){place}"]
            with b.nest(f"case {d.id}:"):
                b.line(f"uint64_t v[] = {{{', '.join(words) or '0'}}};")
                b.line(f"sw_digest_push(s, {d.id}, v, {len(words)});")
                b.line("break;")
        b.line("default: break;")
    return f"static void p4_digest(sw *s, uint32_t list, const phv *h) {{\n{b.text()}}}\n"


def _description(
    program: ir.Program, layout: Layout, header: int, scratch: int, known: int, alike: bool
) -> str:
    counters = ", ".join(f"{{{c.size}, 0}}" for c in program.counters.values())
    meters = ", ".join(f"{{{m.size}, {int(m.octets)}}}" for m in program.meters.values())
    groups = ", ".join(f"{{{size}, {element}, {len(arrays)}}}" for size, element, arrays in layout.groups)
    return (
        f"static const sw_array_desc counter_descs[] = {{{counters or '{0, 0}'}}};\n"
        f"static const sw_array_desc meter_descs[] = {{{meters or '{0, 0}'}}};\n"
        f"static const sw_register_group group_descs[] = {{{groups or '{0, 0, 0}'}}};\n\n"
        "const sw_program sw_the_program = {\n"
        "    .abi = SW_ABI,\n"
        f"    .ntables = {len(program.tables)},\n"
        f"    .ncounters = {len(program.counters)},\n"
        f"    .nmeters = {len(program.meters)},\n"
        f"    .ngroups = {len(layout.groups)},\n"
        f"    .nvsets = {len(program.parser.value_sets)},\n"
        f"    .nknown = {known},\n"
        "    .tables = table_descs,\n"
        "    .vsets = vset_descs,\n"
        "    .counters = counter_descs,\n"
        "    .meters = meter_descs,\n"
        "    .groups = group_descs,\n"
        "    .phv_bytes = sizeof(phv),\n"
        f"    .zeroed_bytes = {f'offsetof(phv, {layout.late[0]})' if layout.late else 'sizeof(phv)'},\n"
        f"    .scratch_bytes = {scratch},\n"
        f"    .header_bytes = {header},\n"
        f"    .alike = {int(alike)},\n"
        "    .run = p4_run,\n"
        "};\n"
    )
