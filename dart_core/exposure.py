"""What it means to serve every network interface, the same of the page and of the API."""

from __future__ import annotations


def listening(port: int, *, guarded: bool, what: str, secret: str, ask: str) -> str:
    """One line on who can come in, and the remedy.

    guarded: whether they are asked for ``secret``, a password or a key; else they may use
    ``what``, and ``ask`` says how to have them asked.
    """
    who = f"--listen: whoever reaches port {port} of this machine"
    if guarded:
        return (
            f"note: {who} needs {secret}, which plain http carries readable: put a proxy with TLS "
            "before it"
        )
    return f"warning: {who} may use {what}; {ask}, or leave --listen out"
