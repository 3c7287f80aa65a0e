"""What a project's own tests can do. tests/django/test_project.py runs them."""

import asyncio
from itertools import product
from unittest.mock import patch
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import IntegrityError, ProgrammingError, connection, transaction
from django.test import TestCase, TransactionTestCase, tag

from holdfast import JobState, UnknownJob
from holdfast.django import app
from holdfast.django.testing import assert_enqueued, assert_nothing_enqueued, enqueued, run_jobs
from holdfast.testing import EndlessDrain, HandlerFailed
from holdfast.types import JobFilter
from stock.models import Item


def names() -> list[str]:
    return sorted(Item.objects.values_list("name", flat=True))


LEFT_OPEN = {("TRANSACTION_OPEN", "the handler left a transaction open; its writes were rolled back")}


class Declared:
    """What code declares is there in every test, before any worker has started."""

    def test_deaths_and_events_make_jobs(self) -> None:
        app.sync.enqueue("fail", "a", attempts=1)
        app.sync.publish("item.sold", "b")
        run_jobs(raise_errors=False)
        self.assertEqual(names(), ["a", "mourned a", "restocked b"])

    def test_schedules_make_jobs(self) -> None:
        report = run_jobs(schedules=True, until="2h")
        self.assertEqual({job.kind for job in report.succeeded}, {"count"})


class DeclaredTest(Declared, TestCase):
    pass


class DeclaredAfterFlushTest(Declared, TransactionTestCase):
    def test_they_are_the_same_after_a_flush(self) -> None:
        for _ in range(2):
            self.test_schedules_make_jobs()
            self.test_deaths_and_events_make_jobs()
            # This is committed, and the flush takes it back.
            app.sync.run(lambda: app.schedules.pause("count"))
            self._fixture_teardown()


class SerializedRollbackTest(Declared, TransactionTestCase):
    """Django sends no `post_migrate` after the flush of these."""

    serialized_rollback = True

    def test_nothing_is_left_of_an_earlier_test(self) -> None:
        self.assertTrue(hasattr(connection, "_test_serialized_contents"))
        for _ in range(2):
            assert_nothing_enqueued()
            app.sync.enqueue("add", "a", delay="2h")
            run_jobs(until="1h")
            self._fixture_teardown()


class InTransactionTest(TestCase):
    def setUp(self) -> None:
        # The test before this one left nothing.
        assert_nothing_enqueued()

    def test_a_job_goes_with_the_rollback_of_its_atomic_block(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            app.sync.enqueue("add", "a")
            raise ZeroDivisionError
        app.sync.enqueue("add", "b")
        self.assertEqual([job.payload for job in enqueued("add")], ["b"])
        with self.assertRaisesMessage(AssertionError, "nothing like add"):
            assert_enqueued("add", "a")

    def test_every_verb_is_part_of_the_transaction(self) -> None:
        ids = [each.id for each in app.sync.enqueue_many([app.job("add", name) for name in "ab"])]
        self.assertEqual(app.sync.cancel(ids), ["canceled", "canceled"])
        self.assertEqual(app.sync.retry(ids[:1]), ["ready"])
        self.assertEqual(app.sync.delete(ids[1:]), ["deleted"])
        self.assertEqual(app.sync.publish("nobody.listens").jobs, ())
        self.assertEqual([job.state for job in enqueued()], ["ready"])

    def test_handlers_of_every_isolation_see_and_write_the_rows_of_the_test(self) -> None:
        for kind in ("add", "add.async", "add.process", "add.process.async"):
            Item.objects.create(name=f"{kind} before")
            app.sync.enqueue(kind, kind)
        report = run_jobs()
        self.assertEqual(len(report.succeeded), 4)
        self.assertEqual(dict(report.endings), {"succeed": 4})
        self.assertEqual(len(names()), 8)
        self.assertEqual(report.jobs[0].result, Item.objects.get(name=report.jobs[0].kind).pk)

    def test_a_failed_handler_fails_the_test(self) -> None:
        app.sync.enqueue("fail", "a")
        with self.assertRaises(HandlerFailed) as raised:
            run_jobs()
        self.assertIsInstance(raised.exception.__cause__, LookupError)
        # What it wrote before it failed stays, as it does in production without an atomic block.
        self.assertEqual(names(), ["a"])
        Item.objects.all().delete()
        report = run_jobs(move_time=True, raise_errors=False)
        self.assertEqual([job.payload for job in report.dead], ["a"])

    def test_a_handler_that_breaks_the_transaction_does_not_break_the_test(self) -> None:
        app.sync.enqueue("break")
        app.sync.enqueue("add", "a")
        report = run_jobs(raise_errors=False)
        self.assertEqual([error.message.strip() for error in report.errors], ["DataError: division by zero"])
        self.assertEqual(names(), ["a"])
        self.assertIsInstance(report.errors[0].exception, Exception)

    def test_an_atomic_block_that_was_left_open_is_an_error_of_its_job_only(self) -> None:
        for kind in ("leave", "leave.async"):
            with self.subTest(kind=kind):
                app.sync.enqueue(kind, ["atomic", "a", "success"])
                app.sync.enqueue("add", "b")
                depth = len(connection.savepoint_ids)
                report = run_jobs(raise_errors=False)
                self.assertEqual({(error.code, error.message.partition(": ")[2]) for error in report.errors}, LEFT_OPEN)
                self.assertEqual(names(), ["b"])
                self.assertEqual(len(connection.savepoint_ids), depth)
                Item.objects.all().delete()

    def test_a_unique_name_that_is_taken_is_an_error_of_its_job_only(self) -> None:
        Item.objects.create(name="a")
        app.sync.enqueue("add", "a", attempts=1)
        report = run_jobs(raise_errors=False)
        self.assertIsInstance(report.errors[0].exception, IntegrityError)
        self.assertEqual(names(), ["a"])

    def test_a_handler_finishes_its_job_on_the_connection(self) -> None:
        app.sync.enqueue("add.finish", "a")
        report = run_jobs()
        self.assertEqual([job.kind for job in report.succeeded], ["add.finish", "add"])
        self.assertEqual(dict(report.endings), {"succeed": 2})
        self.assertEqual(names(), ["a", "after a"])

    def test_on_commit_works_in_handlers_and_is_captured_in_tests(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: app.sync.enqueue("add.later", "a"))
            assert_nothing_enqueued()
        run_jobs()
        self.assertEqual(names(), ["a"])

    def test_a_wait_for_a_job_of_the_open_transaction_is_one_clear_error(self) -> None:
        job = app.sync.enqueue("add", "a")
        with self.assertRaisesMessage(UnknownJob, "this thread's open transaction"):
            app.sync.wait(job.id)
        with self.assertRaisesMessage(UnknownJob, "with @transaction.non_atomic_requests if"):
            job.result()
        run_jobs()
        with self.assertRaises(UnknownJob):
            job.result()
        done = app.sync.jobs.get(job.id)
        self.assertEqual(done and done.result, Item.objects.get(name="a").pk)

    def test_the_jobs_of_the_open_transaction_can_be_read(self) -> None:
        app.sync.enqueue("add", "a", key="k")
        id = app.sync.enqueue("add", "b", delay="2h", queue="slow").id
        jobs = app.sync.jobs
        self.assertEqual(jobs.count()[JobState.READY], 2)
        self.assertEqual([job.payload for job in jobs.list(JobFilter(queue="slow"), 9)], ["b"])
        self.assertEqual(jobs.list_ids(JobFilter(queue="slow"), 9), [id])
        self.assertEqual([(each.queue, each.due) for each in jobs.backlog()], [("default", 1)])
        found = jobs.find("add", "k")
        self.assertEqual(found and found.payload, "a")
        job = jobs.get(id)
        self.assertTrue(job and job.run_at and job.run_at > job.created_at and job.run_at.tzinfo)
        self.assertIsNone(jobs.get(UUID(int=7)))

    def test_what_run_jobs_says_names_it(self) -> None:
        app.sync.enqueue("fail", "a")
        with self.assertRaisesMessage(HandlerFailed, "run_jobs(raise_errors=False)"):
            run_jobs()

    def test_jobs_without_a_handler_are_reported(self) -> None:
        app.sync.enqueue("order.conform")
        with self.assertLogs("holdfast.django", "WARNING") as logs:
            report = run_jobs()
        self.assertEqual([job.kind for job in report.unhandled], ["order.conform"])
        self.assertIn("put it in jobs.py", logs.output[0])

    def test_an_enqueue_without_the_tables_says_what_to_do(self) -> None:
        with (
            patch.object(app, "settings", app.settings.changed(db_schema="elsewhere")),
            self.assertRaises(ProgrammingError) as raised,
            transaction.atomic(),
        ):
            app.sync.enqueue("add", "a")
        self.assertIn("`manage.py migrate`", raised.exception.__notes__[0])

    def test_jobs_without_end_are_stopped(self) -> None:
        for number in range(3):
            app.sync.enqueue("add", str(number))
        with self.assertRaises(EndlessDrain):
            run_jobs(most=2)

    def test_delays_are_kept_and_can_be_skipped(self) -> None:
        app.sync.enqueue("add", "a", delay="2h")
        assert_enqueued("add", "a", delay="2h", count=1)
        self.assertEqual(run_jobs().jobs, ())
        self.assertEqual(run_jobs(until="1h").jobs, ())
        self.assertEqual(len(run_jobs(until="1h").succeeded), 1)

    async def test_an_async_test_reaches_its_connection_through_sync_to_async(self) -> None:
        await sync_to_async(app.sync.enqueue)("add.async", "a")
        report = await sync_to_async(run_jobs)()
        self.assertEqual(len(report.succeeded), 1)
        self.assertEqual(await sync_to_async(names)(), ["a"])

    def test_a_command_can_be_called(self) -> None:
        call_command("holdfast", "schedules", "list")
        with self.assertRaises(CommandError):
            call_command("holdfast", "jobs", "show", str(UUID(int=7)))


class CommittedTest(TransactionTestCase):
    """With the real worker, whose one slot gives each job the thread of the one before."""

    def worked(self, *kinds: tuple[str, object]) -> list[object]:
        ids = [app.sync.enqueue(kind, payload).id for kind, payload in kinds]
        app.sync.run(lambda: app.tick(runners=["queue"]))
        jobs = app.sync.wait_many(ids, "0s").values()
        return [job.result if job.state is JobState.SUCCEEDED else job.state for job in jobs]

    def test_nothing_is_left_of_an_earlier_test(self) -> None:
        for _ in range(2):
            self.assertEqual(enqueued(), [])
            app.sync.enqueue("add", "a")
            run_jobs(until="1h")
            self._fixture_teardown()

    def test_an_enqueue_without_a_block_is_committed_at_once(self) -> None:
        ((result),) = self.worked(("add", "a"))
        self.assertEqual(result, Item.objects.get(name="a").pk)

    def test_a_transaction_that_was_left_open_is_an_error_and_meets_nobody_else(self) -> None:
        self.leaves_no_mess("")

    def test_the_same_in_the_thread_of_async_handlers(self) -> None:
        self.leaves_no_mess(".async")

    @tag("processes")
    def test_the_same_in_the_process_of_a_handler(self) -> None:
        self.leaves_no_mess(".process")

    def leaves_no_mess(self, way: str) -> None:
        for how, ending in product(("atomic", "begin", "autocommit"), ("error", "success")):
            with self.subTest(how=how, ending=ending):
                state = (f"state{way}", None)
                left, *after = self.worked((f"leave{way}", [how, "a", ending]), state, state, state)
                self.assertEqual(left, JobState.DEAD)
                self.assertEqual([each[1:] for each in after], [[False, True]] * 3)
                self.assertEqual(names(), [])
                said = {("ERROR", "left in the middle")} if ending == "error" else LEFT_OPEN
                self.assertEqual(self.errors(f"leave{way}"), said)
        for how in ("atomic", "begin", "autocommit"):
            with self.subTest(how=how, ending="nothing was written"):
                self.assertEqual(self.worked((f"leave{way}", [how, "", "success"])), [None])

    def errors(self, kind: str) -> set[tuple[str, str]]:
        """The errors of the newest job."""
        (job,) = app.sync.jobs.list(JobFilter(kind=kind), 1)
        return {(error["code"], error["message"]) for error in job.errors}

    def test_a_healthy_connection_is_kept_and_a_cut_one_replaced(self) -> None:
        states = self.worked(*[("state", None)] * 6)
        self.assertLess(len({state[0] for state in states}), 6)
        cut, *states = self.worked(("cut", None), *[("state", None)] * 3)
        self.assertEqual(cut, JobState.DEAD)
        self.assertEqual([state[1:] for state in states], [[False, True]] * 3)

    @tag("processes")
    def test_a_handler_in_a_process_has_django_set_up(self) -> None:
        one, other = self.worked(("add.process", "a"), ("add.process.async", "b"))
        self.assertEqual([one, other], [Item.objects.get(name=name).pk for name in "ab"])

    def test_a_wait_outside_of_a_transaction_says_nothing_of_one(self) -> None:
        with self.assertRaises(UnknownJob) as raised:
            app.sync.wait(UUID(int=7))
        self.assertNotIn("transaction", str(raised.exception))

    def test_run_jobs_works_without_a_transaction(self) -> None:
        app.sync.enqueue("add.finish", "a")
        self.assertEqual(len(run_jobs().succeeded), 2)
        self.assertFalse(connection.in_atomic_block)

    def test_run_jobs_tidies_the_connection_as_a_worker_does(self) -> None:
        for how in ("atomic", "begin", "autocommit"):
            with self.subTest(how=how):
                app.sync.enqueue("leave", [how, "a", "success"])
                app.sync.enqueue("state")
                report = run_jobs(raise_errors=False)
                self.assertEqual({(error.code, error.message.partition(": ")[2]) for error in report.errors}, LEFT_OPEN)
                self.assertEqual(report.succeeded[0].result[1:], [False, True])
                self.assertEqual(names(), [])

    def test_run_jobs_survives_a_handler_whose_connection_is_cut(self) -> None:
        app.sync.enqueue("cut")
        app.sync.enqueue("add", "a")
        report = run_jobs(raise_errors=False)
        self.assertEqual([error.kind for error in report.errors], ["cut"])
        self.assertEqual(names(), ["a"])

    def test_the_app_opened_on_another_loop_is_on_the_test_database(self) -> None:
        async def work() -> None:
            async with app:
                await app.enqueue("add", "a")
                await app.tick(runners=["queue"])

        asyncio.run(work())
        self.assertEqual(names(), ["a"])
