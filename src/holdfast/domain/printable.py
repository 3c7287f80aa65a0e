"""Makes text safe for terminals and logs: a job's data must not smuggle in control characters."""


def printable(text: str) -> str:
    """The text without control characters."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)
