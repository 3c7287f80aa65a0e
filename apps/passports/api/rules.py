"""Rule packages: drafts, and publishing them."""

from uuid import UUID

from fastapi import APIRouter

from apps.passports import rule_packages
from apps.passports.api.errors import documented
from apps.passports.api.models import ChangedRules, NewRules, Page, Rules, RulesSummary
from apps.passports.api.service import ThePage, TheService, TheTenant
from apps.passports.database import transaction

router = APIRouter(tags=["rules"])


@router.post("/rules", status_code=201, summary="Add a draft", responses=documented(413, 415))
async def add_rules(new: NewRules, service: TheService, tenant: TheTenant) -> Rules:
    async with transaction(service.pool) as connection:
        rules_id = await rule_packages.add_rules(connection, tenant, new.name, new.source)
    return await rules(rules_id, service, tenant)


@router.get("/rules", summary="List rule packages, the newest first")
async def list_rules(service: TheService, tenant: TheTenant, page: ThePage) -> Page[RulesSummary]:
    return await service.page(RulesSummary, "rules_id", "rules/list", tenant, page)


@router.get("/rules/{rules_id}", summary="Read a rule package")
async def rules(rules_id: UUID, service: TheService, tenant: TheTenant) -> Rules:
    return Rules.model_validate(dict(await service.existing("rules/get", tenant, rules_id, "rule package")))


@router.put("/rules/{rules_id}", summary="Change a draft", responses=documented(409, 413, 415))
async def change_rules(rules_id: UUID, changed: ChangedRules, service: TheService, tenant: TheTenant) -> Rules:
    async with transaction(service.pool) as connection:
        await rule_packages.change_rules(connection, tenant, rules_id, changed.source)
    return await rules(rules_id, service, tenant)


@router.post("/rules/{rules_id}/publish", summary="Publish a draft", responses=documented(409))
async def publish(rules_id: UUID, service: TheService, tenant: TheTenant) -> Rules:
    """The detail of RULE_SYNTAX_ERROR and RULE_TYPE_ERROR begins with the line and column."""
    async with transaction(service.pool) as connection:
        job_ids = await rule_packages.publish(connection, service.app, tenant, rules_id)
    await service.app.ring(job_ids)
    return await rules(rules_id, service, tenant)
