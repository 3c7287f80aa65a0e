"""Finds the app that `module:attribute` or `path/to/file.py:attribute` names, or explains the failure in one line."""

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.cli.options import check_kept
from holdfast.domain.errors import HoldfastError, InvalidInput

if TYPE_CHECKING:
    from holdfast.app import Holdfast

_DEFAULT_ATTRIBUTE = "app"
_PACKAGE = str(Path(__file__).parent.parent)


def load_app(
    address: str | None,
    *,
    store: str | None = None,
    schema: str | None = None,
    called: Mapping[str, str] | None = None,
    **given: object,
) -> "Holdfast":
    """Import the app, with the current folder on the import path; `given` overrides its settings.

    `called` maps settings to the options that set them, for error messages.
    """
    from holdfast.app import Holdfast

    if address is None:
        raise InvalidInput("app: none given; use --app shop.jobs:app or set HOLDFAST_APP")
    found = load_attribute(address)
    if not isinstance(found, Holdfast):
        raise InvalidInput(f"app: {address} is a {type(found).__name__}, not a Holdfast app")
    names = {"db_schema": "schema", **(called or {})}
    found.settings = found.settings.changed(called=names, store=store or None, db_schema=schema or None, **given)
    return found


def load_attribute(address: str) -> object:
    """Return the object that `module:attribute` names; the default attribute is `app`."""
    from holdfast.settings import Settings

    # Check first: importing the app checks them too, and the error would then blame the app's file.
    Settings.check_environment()
    place, _, attribute = address.rpartition(":") if ":" in address else (address, "", _DEFAULT_ATTRIBUTE)
    if not place or not attribute:
        raise InvalidInput(f"app: {address!r} names no app; write module:attribute or path/to/file.py:attribute")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found: object = getattr(module, attribute, None)
    if found is None:
        raise InvalidInput(f"app: {place} has no {attribute!r}{_suggestion(place, module)}")
    return found


def app_of_store(address: str | None, store: str | None, schema: str | None) -> "Holdfast":
    """Return the named app, or one without handlers, for commands that only need the store."""
    from holdfast.app import Holdfast

    app = Holdfast(store, schema=schema) if address is None else load_app(address, store=store, schema=schema)
    check_kept(app)
    return app


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidInput(f"app: there is no file {str(path)!r}; correct the path, or name a module: shop.jobs:app")
    # Import it under its own name: the process of a process-isolated handler imports it by that name.
    module = _import(path.stem, path.resolve().parent)
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise InvalidInput(f"app: another module is already called {path.stem!r}; rename {str(path)!r}")
    return module


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"app: {name!r} is not a module name; write shop.jobs:app or path/to/file.py:app")
    return _import(name, Path.cwd())


def _import(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidInput(
                f"app: there is no module {error.name!r}; run this from the folder that contains it, or give a file: "
                f"path/to/file.py:app"
            ) from error
        raise InvalidInput(f"app: {name!r} cannot be imported: {error}{_place(error)}") from error
    except HoldfastError as error:
        raise InvalidInput(f"app: {error}{_place(error)}") from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InvalidInput(
            f"app: {name!r} cannot be imported: {said}{_place(error)}; run with --debug for the traceback"
        ) from error


def _place(error: BaseException) -> str:
    """The place in the application's code where the error happened."""
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith((_PACKAGE, "<")) and "importlib" not in frame.filename
    ]
    return f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""


def _suggestion(place: str, module: ModuleType) -> str:
    from holdfast.app import Holdfast

    names = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
    return f"; write {place}:{names[0]}" if names else "; it needs a line like `app = Holdfast()`"
