from django.test import TestCase

from holdfast.django.testing import assert_enqueued, assert_nothing_enqueued, run_jobs
from shop.models import Order


class OrderTest(TestCase):
    def test_a_placed_order_is_confirmed(self) -> None:
        answer = self.client.post("/orders/", {"customer": "ann@example.com"})
        number = answer.json()["order"]
        assert_enqueued("order.confirm", {"order": number}, count=1)

        report = run_jobs()

        self.assertEqual([job.kind for job in report.succeeded], ["order.confirm"])
        self.assertIsNotNone(Order.objects.get(pk=number).confirmed_at)

    def test_a_refused_order_leaves_no_job(self) -> None:
        answer = self.client.post("/orders/", {"customer": "joe@elsewhere.test"})
        self.assertEqual(answer.status_code, 400)
        self.assertEqual(Order.objects.count(), 0)
        assert_nothing_enqueued()
