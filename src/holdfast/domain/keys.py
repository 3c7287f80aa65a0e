"""The full name of a key, which is unique within its tenant and kind."""

from typing import NamedTuple, Self

from holdfast.domain.job import check_name
from holdfast.domain.kinds import Kind, kind_name


class KeyName(NamedTuple):
    tenant: str
    kind: str
    key: str

    @classmethod
    def of(cls, kind: Kind | str, key: str, tenant: str = "") -> Self:
        """Check the parts and create the name. The parameters are in the order that callers use."""
        name = check_name("kind", kind_name(kind))
        check_name("key", key)
        if tenant != "":
            check_name("tenant", tenant)
        return cls(tenant, name, key)

    def __str__(self) -> str:
        return f"{self.key!r} of kind {self.kind!r}" + (f" and tenant {self.tenant!r}" if self.tenant else "")
