"""Rule packages: drafts can be changed, published ones cannot. Publishing checks the syntax and the types."""

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from apps.passports.audit import RULES_PUBLISHED, Event, record
from apps.passports.codes import Conflict, NotFound
from apps.passports.database import sql
from apps.passports.rules import check_types, parse
from holdfast import Holdfast

if TYPE_CHECKING:
    from apps.passports.database import Connection
    from apps.passports.tools import Tools


async def add_rules(connection: "Connection", tenant: UUID, name: str, source: str) -> UUID:
    rules_id = uuid4()
    await connection.execute(sql("rules/add"), tenant, rules_id, name, source)
    return rules_id


async def change_rules(connection: "Connection", tenant: UUID, rules_id: UUID, source: str) -> None:
    await _locked_draft(connection, tenant, rules_id)
    await connection.execute(sql("rules/change"), tenant, rules_id, source)


async def publish(connection: "Connection", app: "Holdfast[Tools]", tenant: UUID, rules_id: UUID) -> list[UUID]:
    """Return the IDs of the jobs that announce it. Raise RuleSyntaxError or RuleTypeError for wrong rules."""
    check_types(parse(await _locked_draft(connection, tenant, rules_id)))
    await connection.execute(sql("rules/publish"), tenant, rules_id)
    event = Event(RULES_PUBLISHED, "RulePackage", rules_id, {"rules_id": str(rules_id)})
    return await record(connection, app, tenant, event)


async def _locked_draft(connection: "Connection", tenant: UUID, rules_id: UUID) -> str:
    row = await connection.fetchrow(sql("rules/lock"), tenant, rules_id)
    if row is None:
        raise NotFound(f"there is no rule package {rules_id}")
    if row["status"] != "DRAFT":
        raise Conflict(f"the rule package {rules_id} is published and can no longer be changed")
    source: str = row["source"]
    return source
