"""What a shop does on every framework. Each subclass provides its fixture `running`."""

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.examples.shops import Client, Program, Shop
from tests.worker.harness import eventually


@dataclass(frozen=True, slots=True)
class Running:
    shop: Shop
    server: Program
    worker: Program
    client: Client


class ShopBehavior:
    def test_the_commit_of_an_order_makes_its_job_run(self, running: Running) -> None:
        running.client.confirmed(running.client.place("Ann"))

    def test_an_error_after_the_enqueue_leaves_neither_order_nor_job(self, running: Running) -> None:
        before = running.shop.jobs()
        assert running.client.place("Bob", quantity=1000).status_code == 409
        assert running.shop.rows("SELECT id FROM orders WHERE customer = 'Bob'") == []
        assert running.shop.jobs() == before

    def test_an_order_whose_commit_fails_is_not_answered_with_success(self, running: Running) -> None:
        running.shop.rows(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
            CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW WHEN (NEW.customer = 'Carl') EXECUTE FUNCTION refuse()
            """
        )
        before = running.shop.jobs()
        assert running.client.place("Carl").status_code == 500
        assert running.shop.jobs() == before

    def test_many_threads_order_at_once(self, running: Running) -> None:
        with ThreadPoolExecutor(16) as pool:
            orders = [pool.submit(running.client.place, f"Dora {number}") for number in range(20)]
            newsletters = [pool.submit(running.client.order_newsletter, f"Emil {number}") for number in range(20)]
        running.client.confirmed(*(order.result() for order in orders))
        sent = [running.client.sent(newsletter.result()) for newsletter in newsletters]
        assert sent == [f"Dear Emil {number}" for number in range(20)]

    def test_connections_that_were_cut_cost_one_error_at_most(self, running: Running) -> None:
        client = running.client
        client.confirmed(client.place("Frida"))
        client.sent(client.order_newsletter("Frida"))
        assert running.shop.cut_connections() >= 3
        orders = [client.place("Gero") for _ in range(5)]
        newsletters = [client.order_newsletter("Gero") for _ in range(5)]
        done = [answer for answer in (*orders, *newsletters) if answer.is_success]
        assert len(done) >= 9
        client.confirmed(*(order for order in orders if order.is_success))
        assert {client.sent(newsletter) for newsletter in newsletters if newsletter.is_success} == {"Dear Gero"}

    def test_a_request_waits_for_a_result(self, running: Running) -> None:
        order = running.client.place("Hugo", quantity=3).json()["id"]
        answer = running.client.receipt(order)
        assert (answer.status_code, answer.json()) == (200, {"text": "3 pieces for Hugo"})
        refused = running.client.receipt(0)
        assert (refused.status_code, refused.json()) == (422, {"detail": "NO_SUCH_ORDER"})

    def test_a_result_that_takes_longer_is_at_the_address_in_the_answer(self, running: Running) -> None:
        order = running.client.place("Ida", quantity=4).json()["id"]
        running.worker.process.send_signal(signal.SIGSTOP)
        try:
            answer = running.client.receipt(order, wait=0)
        finally:
            running.worker.process.send_signal(signal.SIGCONT)
        assert running.client.sent(answer) == {"text": "4 pieces for Ida"}


def check_use_around_a_fork(shop: Shop, enqueued_by_parent: int, target: str, *options: str) -> None:
    """Parent and children use the app in turn, and all of them end in good order."""
    hooks = f"{Path(__file__).parent}/gunicorn_hooks.py"
    server = shop.start(
        "gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:0", "-c", hooks, *options, target
    )
    client = shop.client(server)
    with ThreadPoolExecutor(8) as pool:
        orders = list(pool.map(client.place, ["Karl"] * 16))
        newsletters = list(pool.map(client.order_newsletter, ["Karl"] * 16))
    assert {order.status_code for order in orders} == {201}
    assert {newsletter.status_code for newsletter in newsletters} == {202}
    assert server.stopped() == 0, server.log
    assert server.troubles() == [], server.log
    worker = shop.start_worker()
    live = "SELECT id FROM holdfast.ready UNION ALL SELECT id FROM holdfast.lease"
    eventually(lambda: shop.rows(live) == [], "all jobs have run")
    assert worker.stopped() == 0, worker.log
    assert shop.rows("SELECT id FROM holdfast.dead_letter") == []
    by_parent = shop.rows("SELECT count(*) FROM holdfast.job WHERE payload->>'to' = 'the parent'")
    assert by_parent == [(enqueued_by_parent,)]
