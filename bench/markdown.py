"""Figures as Markdown tables."""

from collections.abc import Iterable


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(header)
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join('---' for _ in names)}|"]
    lines.extend(f"| {' | '.join(row)} |" for row in rows)
    return f"{title}\n\n" + "\n".join(lines)
