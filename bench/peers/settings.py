"""settings.toml as values: the peers, their versions and settings, the pairs, and the sizes."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Sizes:
    batch: int
    bulk_jobs: int
    single_seconds: float
    pickup_jobs: int
    pickup_gap_seconds: float
    pickup_settle_seconds: float
    cap_seconds: float
    pair_cap_seconds: float

    def reduced(self, share: float) -> "Sizes":
        """Smaller sizes for trials, whose figures must not be published."""
        return Sizes(
            self.batch,
            max(self.batch, int(self.bulk_jobs * share)),
            self.single_seconds * share,
            max(10, int(self.pickup_jobs * share)),
            self.pickup_gap_seconds,
            self.pickup_settle_seconds,
            max(1.0, self.cap_seconds * share),
            max(1.0, self.pair_cap_seconds * share),
        )


@dataclass(frozen=True, slots=True)
class Peer:
    slug: str
    name: str
    adapter: Path
    unfinished: str
    """A query with one row per unfinished job."""
    packages: tuple[str, ...]
    node: str | None
    """The version of node that it needs, or None for a Python package."""

    @property
    def is_own(self) -> bool:
        """Whether it runs from the project's own environment."""
        return not self.packages

    @property
    def version(self) -> str:
        """The pinned version, or that of the working copy for Holdfast."""
        return self.packages[0].replace("==", "@").rpartition("@")[2] if self.packages else metadata.version("holdfast")


@dataclass(frozen=True, slots=True)
class Setting:
    """A peer with the settings of its workers, for drains and pick-ups."""

    peer: Peer
    name: str
    described: str
    jobs: int
    worker: Mapping[str, Any]
    tuned: bool = False
    """Whether its tables get the settings that the peer recommends but does not install by itself."""

    @property
    def slug(self) -> str:
        return f"{self.peer.slug}/{self.name}"


@dataclass(frozen=True, slots=True)
class Pair:
    of: Setting
    against: Setting
    jobs: int

    @property
    def slug(self) -> str:
        return f"{self.of.slug}:{self.against.slug}"


@dataclass(frozen=True, slots=True)
class Settings:
    sizes: Sizes
    settings: tuple[Setting, ...]
    pairs: tuple[Pair, ...]

    @classmethod
    def load(cls) -> Self:
        text = tomllib.loads((HERE / "settings.toml").read_text())
        settings: dict[str, Setting] = {}
        for slug, entry in text["peers"].items():
            peer = Peer(
                slug,
                entry["name"],
                HERE / "adapters" / entry["adapter"],
                entry["unfinished"],
                tuple(entry.get("packages", ())),
                entry.get("node"),
            )
            for name, chosen in entry["settings"].items():
                setting = Setting(
                    peer, name, chosen["described"], chosen["jobs"], chosen["worker"], chosen.get("tuned", False)
                )
                settings[setting.slug] = setting
        pairs = (Pair(settings[each["of"]], settings[each["against"]], each["jobs"]) for each in text["pairs"])
        return cls(Sizes(**text["sizes"]), tuple(settings.values()), tuple(pairs))

    def stated(self) -> dict[str, Any]:
        """Everything that a figure depends on, in the form that a record stores."""
        return {
            "sizes": asdict(self.sizes),
            "settings": {
                each.slug: {"jobs": each.jobs, "worker": dict(each.worker), "tuned": each.tuned}
                for each in self.settings
            },
            "pairs": {each.slug: each.jobs for each in self.pairs},
        }

    @property
    def peers(self) -> tuple[Peer, ...]:
        return tuple(dict.fromkeys(setting.peer for setting in self.settings))
