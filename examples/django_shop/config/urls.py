from django.urls import path
from shop import views

urlpatterns = [
    path("orders/", views.place_order),
    path("orders/<int:number>/", views.show_order),
    path("orders/<int:number>/note/", views.note_order),
]
