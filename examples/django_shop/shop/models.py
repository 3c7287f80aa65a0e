from django.db import models


class Order(models.Model):
    customer = models.EmailField()
    note = models.TextField(blank=True)
    confirmed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.customer}"
