# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace …`: packet captures, from recording to reading."""

from __future__ import annotations

import typer

from .dissector_cli import trace_dissector
from .explain_cli import trace_explain
from .ladder_cli import trace_chunk, trace_slot
from .plot_cli import trace_plot
from .record_cli import trace_record
from .show_cli import trace_show
from .verify_cli import trace_verify

app = typer.Typer(
    help="Packet traces: record, show, verify, explain, slot, chunk, plot, dissector.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("record")(trace_record)
app.command("verify")(trace_verify)
app.command("explain")(trace_explain)
app.command("slot")(trace_slot)
app.command("chunk")(trace_chunk)
app.command("show")(trace_show)
app.command("plot")(trace_plot)
app.command("dissector")(trace_dissector)
