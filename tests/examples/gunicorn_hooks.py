"""Configuration of gunicorn in which the parent of a preloaded shop uses its app, before and after the fork."""

from importlib import import_module

control_socket_disable = True


def use_app(moment: str) -> None:
    shop = import_module("shop")
    shop.app.sync.enqueue("newsletter.send", {"to": "the parent"}, key=moment)
    if hasattr(shop, "engine"):
        with shop.engine.begin() as connection:
            shop.app.sync.enqueue("newsletter.send", {"to": "the parent"}, key=f"{moment} in SQL", conn=connection)


def when_ready(server: object) -> None:
    """Called in the parent, before it forks."""
    use_app("before")


def on_exit(server: object) -> None:
    """Called in the parent, when its children have ended."""
    use_app("after")
